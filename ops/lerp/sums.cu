// Gradients of lerp summed over any set of axes. ops/lerp/sums.py plans the launch.
#include "reduce.cuh"

// SUM_THREADS, SUM_AXES, FEW_AXES, COLLECTED, LANE_BITS and COLUMN_BITS are defined by cuda_sums.py.

// Minimum resident blocks per multiprocessor: as many as the registers allow without spills.
template <int V, bool ROWS, int SUMS, typename I>
constexpr int SUM_RESIDENT = sizeof(I) == 8 ? 2 : ((V == 1 || (!ROWS && (V == 8 || SUMS == 2))) ? 3 : 4);

template <int N>
struct Count {  // a number that a lambda takes as a template argument
  static constexpr int value = N;
};

// An axis: jumps of dout and weight for each quotient of an index by the lengths of the axes within, and its length. Pair: an
// axis of the results, and one of the sums. I: type of offsets in elements, which wrap.
template <typename I>
struct Step;
template <typename I>
struct Pair;
DEFINE_Step;  // of cuda_sums.py
DEFINE_Pair;

// What one launch sums, and from which factors of dout: offset + sign weight. What every sum needs comes first, as other
// lines of 64 bytes of the arguments arrive later.
template <typename A, typename I>
struct Task;
DEFINE_Task;

template <typename I>
struct OffsetPair {
  I dout, weight;
};

// part: of the axes of results, or of sums.
template <int MOST, typename I>
__device__ __forceinline__ OffsetPair<I> offsets_of(unsigned int index, const Pair<I>* axes, Step<I> Pair<I>::* part) {
  OffsetPair<I> found = {(axes[0].*part).dout * index, (axes[0].*part).weight * index};
#pragma unroll
  for (int axis = 1; axis < MOST; ++axis) {
    index = quotient(index, (axes[axis - 1].*part).length);
    found.dout += (axes[axis].*part).dout * index;
    found.weight += (axes[axis].*part).weight * index;
  }
  return found;
}

// Sums over groups of `lanes` neighbouring threads, a power of two, in all of them. slots: SUM_THREADS per value.
template <int VALUES, typename A>
__device__ __forceinline__ void sum_lanes(A (&sums)[VALUES], int lanes, A* slots) {
  const auto shuffle = [&](int first) {
    for (int distance = first; distance > 0; distance /= 2) {
#pragma unroll
      for (int v = 0; v < VALUES; ++v) sums[v] += shuffle_xor(sums[v], distance);
    }
  };
  shuffle(min(lanes, 32) / 2);
  if (lanes <= 32) return;
  const int warp = threadIdx.x / 32, warps = lanes / 32;
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VALUES; ++v) {
    if (threadIdx.x % 32 == 0) slots[v * SUM_THREADS + warp] = sums[v];
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VALUES; ++v) sums[v] = slots[v * SUM_THREADS + (warp & -warps) + (threadIdx.x & (warps - 1))];
  shuffle(warps / 2);
}

// One block's part of a task: a split of the sums of some results, all of whose VALUES numbers a thread has.
template <typename T, int V, bool ROWS, bool SPREAD, int SUMS, typename I>
__device__ __forceinline__ void sum_part(
    const T* __restrict__ dout, const T* __restrict__ weight, const Task<Wide<T>, I>& task, unsigned int block, unsigned int split) {
  using A = Wide<T>;
  constexpr int EACH = ROWS ? 1 : V, WEIGHTS = SPREAD ? 1 : V, VALUES = SUMS * EACH;
  constexpr int AT_ONCE = V == 1 ? 8 : (SPREAD ? 4 : 2);  // loads in flight
  __shared__ A slots[VALUES * SUM_THREADS];
  const int lane_bits = task.layout & ((1 << LANE_BITS) - 1), column_bits = task.layout >> LANE_BITS & ((1 << COLUMN_BITS) - 1);
  const int splits = task.layout >> (LANE_BITS + COLUMN_BITS), lanes = 1 << lane_bits, columns = 1 << column_bits;
  const int lane = ROWS ? threadIdx.x & (lanes - 1) : threadIdx.x >> column_bits;
  const unsigned int first_unit = block << column_bits;
  const unsigned int unit = first_unit + (ROWS ? threadIdx.x >> lane_bits : threadIdx.x & (columns - 1));
  const unsigned int end = unit < task.units ? task.terms : 0, nearest = min(unit, task.units - 1);
  OffsetPair<I> origin;
  if (task.kept_axes <= 1) {
    origin = offsets_of<1>(nearest, task.axes, &Pair<I>::kept);
  } else {
    origin = task.kept_axes <= FEW_AXES ? offsets_of<FEW_AXES>(nearest, task.axes, &Pair<I>::kept)
                                        : offsets_of<SUM_AXES>(nearest, task.axes, &Pair<I>::kept);
  }
  const unsigned int step = lanes * splits;
  T* const other = static_cast<T*>(task.other);
  A sums[VALUES] = {};
  // Adds UNROLL units from `start` on, which are MOST axes deep.
  const auto take = [&](unsigned int start, auto unrolled, auto most) {
    constexpr int UNROLL = decltype(unrolled)::value, MOST = decltype(most)::value;
    VectorWord<T, V> loaded[UNROLL];
    VectorWord<T, WEIGHTS> shares[UNROLL];
    I at[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned int index = start + u * step;
      const bool valid = index < end;
      const OffsetPair<I> within = offsets_of<MOST>(valid ? index : start, task.axes, &Pair<I>::summed);
      at[u] = origin.dout + within.dout;
      loaded[u] = fetch_where<T, V, false>(dout + at[u], valid);
      if (weight != nullptr) shares[u] = fetch_where<T, WEIGHTS, false>(weight + origin.weight + within.weight, valid);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (start + u * step >= end) break;
      const Vector<T, V> given = as_vector<T, V>(loaded[u]);
      Vector<T, WEIGHTS> parts{};
      if (weight != nullptr) parts = as_vector<T, WEIGHTS>(shares[u]);
      Vector<T, V> rest;
      A few[VALUES] = {};
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(given.at[i]), part = weight != nullptr ? widen(parts.at[SPREAD ? 0 : i]) : A(0);
        few[ROWS ? 0 : i] += (task.offset + task.sign * part) * value;
        if constexpr (SUMS == 2) few[EACH + (ROWS ? 0 : i)] += (task.second_offset + task.second_sign * part) * value;
        rest.at[i] = narrow<T>((task.other_offset + task.other_sign * part) * value);
      }
#pragma unroll
      for (int v = 0; v < VALUES; ++v) sums[v] += few[v];
      if (other != nullptr) store<T, V>(other + at[u], rest);
    }
  };
  const auto loop = [&](auto unrolled, auto most) {
    const unsigned int further = decltype(unrolled)::value * step;
    for (unsigned int start = (split << lane_bits) + lane; start < end; start += further) take(start, unrolled, most);
  };
  const bool once = (split << lane_bits) + step >= task.terms;  // short code: a tiny kernel is bound by instruction fetch
  const unsigned int first_term = (split << lane_bits) + lane;
  if (task.summed_axes > FEW_AXES) {
    loop(Count<V == 1 || SPREAD ? 4 : 2>{}, Count<SUM_AXES>{});
  } else if (task.summed_axes > 1) {
    once ? take(first_term, Count<1>{}, Count<FEW_AXES>{}) : loop(Count<AT_ONCE>{}, Count<FEW_AXES>{});
  } else {
    once ? take(first_term, Count<1>{}, Count<1>{}) : loop(Count<AT_ONCE>{}, Count<1>{});
  }
  if (!ROWS && lanes > 1 && columns > 1) {  // lanes of a result become neighbours
#pragma unroll
    for (int v = 0; v < VALUES; ++v) slots[v * SUM_THREADS + threadIdx.x] = sums[v];
    __syncthreads();
    const int from = (threadIdx.x & (lanes - 1)) * columns + (threadIdx.x >> lane_bits);
#pragma unroll
    for (int v = 0; v < VALUES; ++v) sums[v] = slots[v * SUM_THREADS + from];
  }
  sum_lanes(sums, lanes, slots);
  const auto put = [&](unsigned int of, int v, A sum) {
    T* const to = static_cast<T*>(v < EACH ? task.first : task.second);
    to[static_cast<long long>(of) * EACH + v % EACH] = narrow<T>(sum);
  };
  const unsigned int merged = first_unit + (threadIdx.x >> lane_bits);
  const bool leader = (threadIdx.x & (lanes - 1)) == 0 && merged < task.units;
  if (splits == 1) {
#pragma unroll
    for (int v = 0; v < VALUES; ++v) {
      if (leader) put(merged, v, sums[v]);
    }
    return;
  }
  const long long apart = static_cast<long long>(task.units) * VALUES;  // partial sums from split to split
  if (split + 1 < splits) {
#pragma unroll
    for (int v = 0; v < VALUES; ++v) {
      if (leader) publish(task.partials + (split * apart + static_cast<long long>(merged) * VALUES + v) * WORDS<A>, sums[v]);
    }
    return;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VALUES; ++v) {
    if (leader) slots[(threadIdx.x >> lane_bits) * VALUES + v] = sums[v];
  }
  __syncthreads();
  const int threads = lanes * columns, share = max(threads / (columns * VALUES), 1);  // threads that collect one number
  for (int first = 0; first < columns * VALUES; first += threads / share) {
    const int number = first + threadIdx.x / share, collector = threadIdx.x & (share - 1);
    const unsigned int of = first_unit + number / VALUES;
    const int before = of < task.units ? splits - 1 : 0;
    A sum[1] = {collector == 0 && of < task.units ? slots[number] : A(0)};
    unsigned long long* const words = task.partials + (static_cast<long long>(first_unit) * VALUES + number) * WORDS<A>;
    sum[0] = collect<COLLECTED>(Sum<T>{}, sum[0], words, before, collector, share, apart);
    sum_lanes(sum, share, slots);
    if (collector == 0 && of < task.units) put(of, number % VALUES, sum[0]);
  }
}

// reduce_any: SUMS gradients summed over the same axes, and one that is not summed, in one pass.
// Layout   dout and weight by steps over retained axes (the results) and summed axes, in any order
// Grid     blocks of results × splits of the sum      Block  lanes × columns, powers of two, at least 32 threads
// Needs    V > 1: innermost axis a multiple of V, operands aligned
// Writes   first, second, and other unless null, through flagged partials (splits, results), zero between launches
// Waits    the last split merges those before it
// Why      every pattern of broadcasting reads dout and weight once. ROWS: the innermost axis is summed. SPREAD: one
//          weight for a vector, else as many.
template <typename T, int V, bool ROWS, bool SPREAD, int SUMS, typename I>
__global__ void __launch_bounds__(SUM_THREADS, SUM_RESIDENT<V, ROWS, SUMS, I>)
    reduce_any(const T* __restrict__ dout, const T* __restrict__ weight, const __grid_constant__ Task<Wide<T>, I> task) {
  sum_part<T, V, ROWS, SPREAD, SUMS>(dout, weight, task, blockIdx.x, blockIdx.y);
}

// reduce_two: the gradients of both operands, summed over different axes.
// Layout, Block, Writes   as in reduce_any, of a task each without splits; blocks are of the largest task
// Grid     blocks of the first task, `blocks`, and of the second
// Why      few elements: one launch instead of two
template <typename T, bool FIRST_ROWS, bool SECOND_ROWS>
__global__ void __launch_bounds__(SUM_THREADS, SUM_RESIDENT<1, true, 1, unsigned int>) reduce_two(
    const T* __restrict__ dout, const T* __restrict__ weight, int blocks, const __grid_constant__ Task<Wide<T>, unsigned int> first,
    const __grid_constant__ Task<Wide<T>, unsigned int> second) {
  if (blockIdx.x < blocks) {
    sum_part<T, 1, FIRST_ROWS, true, 1>(dout, weight, first, blockIdx.x, 0);
  } else {
    sum_part<T, 1, SECOND_ROWS, true, 1>(dout, weight, second, blockIdx.x - blocks, 0);
  }
}
