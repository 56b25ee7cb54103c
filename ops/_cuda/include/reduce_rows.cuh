// Reductions of contiguous rows (rows, length), by vectors of V elements, 16 bytes.
#pragma once
#include "reduce.cuh"

// Vectors in flight per thread and tensor: vectors of eight half or two double elements leave fewer registers.
template <typename T>
constexpr int vectors_in_flight() {
  return sizeof(T) == 4 ? 4 : 2;
}
template <typename F, typename T = typename F::Input>
constexpr int LANES_IN_FLIGHT = F::TWO ? vectors_in_flight<T>() : 4;
template <typename F, typename T = typename F::Input>
constexpr int GRID_IN_FLIGHT = sizeof(T) == 4 ? 4 : (F::TWO ? 1 : (sizeof(T) == 2 ? 4 : 2));

// Reduces elements [begin, end), fewer than 2^31, by lane `lane` of `lanes`. Vectors are aligned in memory, so that the
// first and the last may contain elements outside the range, unless all are WHOLE: those become neutral. An aligned vector
// never leaves the allocation, whose granularity is larger. shift: elements from an aligned address to x.
template <typename F, int V, int UNROLL, bool STREAM, bool WHOLE>
__device__ __forceinline__ typename F::Acc take_range(
    const F& f, const typename F::Input* x, const typename F::Input* second, long long begin, long long end, int shift,
    int lane, int lanes) {
  using T = typename F::Input;
  typename F::Acc mine = f.identity();
  const long long first = WHOLE ? begin : (begin + shift) / V * V - shift;
  const T* const from = x + first;
  const T* const other = F::TWO ? second + first : x;
  const int low = static_cast<int>(begin - first), high = static_cast<int>(end - first);
  const unsigned int inside_of = high - low;
#pragma unroll 1  // unrolled further, cheap sums spill
  for (int start = lane * V; start < high; start += UNROLL * lanes * V) {
    VectorWord<T, V> one[UNROLL], two[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if constexpr (F::TWO) {  // a branch: predicates would take more registers than valid are
        if (at >= high) continue;
        one[u] = fetch<T, V, STREAM>(from + at);
        two[u] = fetch<T, V, STREAM>(other + at);
      } else if constexpr (WRITES_BESIDE<F>) {
        one[u] = fetch_evict_last<T, V>(from + at, at < high);
      } else {
        one[u] = fetch_where<T, V, STREAM>(from + at, at < high);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if (at >= high) continue;
      Vector<T, V> a = as_vector<T, V>(one[u]);
      Vector<T, V> b = F::TWO ? as_vector<T, V>(two[u]) : a;
      const bool inside = WHOLE || (at >= low && at + V <= high);
      if constexpr (WRITES_BESIDE<F>) f.template beside<WHOLE>(first + at, a);
      if (V > 4 && !inside) {  // separate code: masked vectors are as_vector element by element first
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (static_cast<unsigned int>(at + i - low) < inside_of) mine = f.take(mine, a.at[i], b.at[i]);
        }
        continue;
      }
      if (!inside) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (at + i >= low && at + i < high) continue;
          a.at[i] = b.at[i] = f.neutral();
        }
      }
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
    }
  }
  return mine;
}

// Minimum resident blocks per multiprocessor for __launch_bounds__ (0: the compiler's choice): 1024 threads, unless the
// power of a double is a call.
template <typename F>
constexpr int LANES_RESIDENT = sizeof(typename F::Input) < 8 ? 1024 / REDUCE_THREADS : 0;

// reduce_rows_lanes: `lanes` threads, a power of two, reduce one row.
// Layout   x[rows][length]                 Grid  rows / (REDUCE_THREADS / lanes)     Block  REDUCE_THREADS
// Needs    WHOLE: every row begins and ends with a vector                            Writes  out[rows]
// Why      short rows leave no lane idle, and unaligned ones are read by vectors all the same
template <typename F, int V, bool STREAM, bool WHOLE>
__global__ void __launch_bounds__(REDUCE_THREADS, LANES_RESIDENT<F>) reduce_rows_lanes(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, long long rows, long long length,
    int shift, int lanes, const typename F::Input* __restrict__ second) {
  const int bits = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
  const long long row = static_cast<long long>(blockIdx.x) * (REDUCE_THREADS >> bits) + (threadIdx.x >> bits);
  typename F::Acc mine = f.identity();
  if (row < rows) {
    mine = take_range<F, V, LANES_IN_FLIGHT<F>, STREAM, WHOLE>(
        f, x, second, row * length, (row + 1) * length, shift, lane, lanes);
  }
  mine = lanes <= 32 ? merge_lanes(f, mine, lanes) : merge_warps(f, mine, lanes);
  if (lane == 0 && row < rows) out[row] = f.finish(mine);
}

// reduce_rows_block: one thread block reduces one row, whose vectors are all in flight at once.
// Layout   x[rows][length]                   Grid  rows                                 Block  THREADS; FEW: whole warps
// Needs    vectors ≤ block · EACH, of a row, or that it touches unless all are WHOLE    Writes  out[rows]
// Why      a block takes as long as one load, with few instructions before it. FEW rows: no other blocks hide latency,
//          so that blocks as large as a row replace blocks that share it
template <typename F, int EACH>
constexpr bool FEW = EACH * (1 + F::TWO) > 2;
template <typename F, int V, bool STREAM, int THREADS, int EACH, bool WHOLE>
__global__ void __launch_bounds__(THREADS, FEW<F, EACH> ? 1 : MOST_THREADS / THREADS) reduce_rows_block(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, int length, int shift,
    const typename F::Input* __restrict__ second) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ Acc slots[THREADS / 32];
  const int threads = FEW<F, EACH> ? blockDim.x : THREADS;
  const long long begin = static_cast<long long>(blockIdx.x) * length + shift;  // from an aligned address
  const int low = WHOLE ? 0 : static_cast<int>(begin & (V - 1)), high = low + length, vectors = (high + V - 1) / V;
  const long long first = begin - low - shift;
  VectorWord<T, V> one[EACH], two[EACH];
#pragma unroll
  for (int u = 0; u < EACH; ++u) {  // surplus threads load the last vector again: cheaper than a predicate
    const int at = min(static_cast<int>(threadIdx.x) + u * threads, vectors - 1) * V;
    one[u] = fetch<T, V, STREAM>(x + first + at);
    if constexpr (F::TWO) two[u] = fetch<T, V, STREAM>(second + first + at);
  }
  Acc mine = f.identity();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    const int vector = static_cast<int>(threadIdx.x) + u * threads, at = vector * V;
    if (vector >= vectors) continue;
    const Vector<T, V> a = as_vector<T, V>(one[u]), b = F::TWO ? as_vector<T, V>(two[u]) : a;
    if (WHOLE || (at >= low && at + V <= high)) {
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (at + i >= low && at + i < high) mine = f.take(mine, a.at[i], b.at[i]);
      }
    }
  }
  mine = merge_at_end<THREADS>(f, mine, slots, threads);
  if (threadIdx.x == 0) out[blockIdx.x] = f.finish(mine);
}

// reduce_rows_grid: several blocks reduce one row, or one row of segments; the last of them merges the partial results.
// Layout   x[outer][segments][inner][length], reduced over segments and length; rows are (outer, inner)
// Grid     rows × splits           Block  REDUCE_THREADS
// Needs    `share` elements of a single segment for each split, or `each` whole segments
// Writes   out[rows], through flagged partials (rows, splits - 1), which are zero between launches
// Waits    the last split of each row waits for the others: the plan limits rows to the number of resident blocks
// Why      few long rows use the whole device
// GRID_RESIDENT, resident blocks per multiprocessor, is defined by ops/_cuda/reduction/problem.py.
template <typename F, int V, bool STREAM, bool WHOLE>
__global__ void __launch_bounds__(REDUCE_THREADS, GRID_RESIDENT - (sizeof(typename F::Input) == 8)) reduce_rows_grid(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, long long length, int shift,
    int segments, long long share, int inner, int each, const typename F::Input* __restrict__ second,
    unsigned long long* flagged) {
  using Acc = typename F::Acc;
  const int row = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  long long first = row * length;
  if (segments > 1) {
    const int outer = row / inner;
    first = (static_cast<long long>(outer) * segments * inner + (row - outer * inner)) * length;
  }
  Acc mine = f.identity();
  const long long part = segments == 1 ? share * split : 0;
  const int last = segments == 1 ? 1 : min(segments, (split + 1) * each);
  int segment = segments == 1 ? 0 : split * each;
#pragma unroll 1
  do {
    const long long start = first + static_cast<long long>(segment) * inner * length;
    mine = f.merge(mine, take_range<F, V, GRID_IN_FLIGHT<F>, STREAM, WHOLE>(
                             f, x, second, start + part, start + min(length, part + share), shift, threadIdx.x,
                             REDUCE_THREADS));
  } while (++segment < last);
  flagged += static_cast<long long>(row) * (splits - 1) * WORDS<Acc>;
  if (split < splits - 1) {
    mine = merge_warps(f, mine, REDUCE_THREADS);
    if (threadIdx.x == 0) publish(flagged + split * WORDS<Acc>, mine);
    return;
  }
  for (int other = threadIdx.x; other < splits - 1; other += REDUCE_THREADS) {
    unsigned long long* const from = flagged + other * WORDS<Acc>;
    mine = f.merge(mine, poll<Acc>(from));
    reset<Acc>(from);
  }
  mine = merge_warps(f, mine, REDUCE_THREADS);
  if (threadIdx.x == 0) out[row] = f.finish(mine);
}

// reduce_rows_once: blocks read up to EACH vectors per thread of one row, all in flight at once, and end.
// Layout   x[rows][length], rows that begin anywhere    Grid  rows · splits + collecting     Block  THREADS
// Needs    share ≤ THREADS · EACH vectors, whole cache lines; shift: elements from the start of a cache line to x
// Writes   out[rows], through flagged partials (rows, splits), which are zero between launches
// Waits    the last blocks merge, `lanes` threads per row; they start after all others
// Why      memory is read in the order of its addresses, and no block waits while valid are vectors to read
template <typename F, int V, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, MOST_THREADS / THREADS) reduce_rows_once(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, int rows, long long length, int shift,
    int share, int lanes, Divisor splits_of, const typename F::Input* __restrict__ second,
    unsigned long long* flagged) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ Acc slots[THREADS / 32];
  const int splits = splits_of.value, row = quotient(blockIdx.x, splits_of), split = blockIdx.x - row * splits;
  if (row >= rows) {
    const int block = blockIdx.x - rows * splits;
    collect_rows<THREADS>(f, slots, block, rows, splits, lanes, flagged, [&](int at, Acc all) { out[at] = f.finish(all); });
    return;
  }
  const long long start = row * length + shift;
  const int low = static_cast<int>(start) & (LINE_VECTORS * V - 1), high = low + static_cast<int>(length);  // of its vectors
  const int first = split * share + static_cast<int>(threadIdx.x), until = min((high + V - 1) / V, (split + 1) * share);
  const long long begin = (start - low - shift) + static_cast<long long>(first) * V;
  const T* const from = x + begin;
  const T* const other = F::TWO ? second + begin : from;
  VectorWord<T, V> one[EACH], two[EACH];
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    const bool there = first + u * THREADS < until;
    if constexpr (WRITES_BESIDE<F>) {
      one[u] = fetch_evict_last<T, V>(from + u * THREADS * V, there);
    } else {
      one[u] = fetch_where<T, V, true>(from + u * THREADS * V, there);
    }
    if constexpr (F::TWO) two[u] = fetch_where<T, V, true>(other + u * THREADS * V, first + u * THREADS < until);
  }
  Acc mine = f.identity();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    const int vector = first + u * THREADS, at = vector * V;
    if (vector >= until) continue;
    const Vector<T, V> a = as_vector<T, V>(one[u]), b = F::TWO ? as_vector<T, V>(two[u]) : a;
    if constexpr (WRITES_BESIDE<F>) f.template beside<false>(begin + u * THREADS * V, a);
    if (at >= low && at + V <= high) {
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (at + i >= low && at + i < high) mine = f.take(mine, a.at[i], b.at[i]);
      }
    }
  }
  mine = merge_at_end<THREADS>(f, mine, slots);
  if (threadIdx.x == 0) publish(flagged + (static_cast<long long>(row) * splits + split) * WORDS<Acc>, mine);
}
