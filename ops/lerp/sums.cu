// Gradients of lerp summed over any set of axes. ops/lerp/sums.py plans the launch.
#include "vector.cuh"
#include "arrival_counter.cuh"
#include "strides.cuh"

// SUM_THREADS and FIX_UP, splits per group, are defined by cuda_grad.py.
constexpr int SUM_RESIDENT = 2;  // minimum resident blocks per multiprocessor: the compiler's own choice spills

template <int N>
struct Count {  // a number that a lambda takes as a template argument
  static constexpr int value = N;
};

DEFINE_Part;  // of cuda_grad.py, a group of dout's axes

// Factor of dout in a gradient: offset + sign weight.
template <typename A>
struct Factor;
DEFINE_Factor;

// Partial sums: arrival counters, zero between launches, then [split][result] and [group][result].
template <typename A>
struct Partials;
DEFINE_Partials;

// Adds `count` rows of `total` results each, `stride` rows apart, `columns` of them from `begin` on, by all threads of the
// block; calls put(result, sum).
template <typename A, typename Put>
__device__ __forceinline__ void sum_partials(
    const A* partials, int count, long long stride, long long total, long long begin, int columns, A* slots, const Put& put) {
  const int across = min(columns, SUM_THREADS), groups = SUM_THREADS / across;
  const int group = threadIdx.x / across, lane = threadIdx.x % across;
  for (int first = 0; first < columns; first += across) {
    const long long result = begin + first + lane;
    A sum = 0;
    if (result < total) {
#pragma unroll 8
      for (int row = group; row < count; row += groups) sum += __ldcg(partials + row * stride + result);
    }
    slots[threadIdx.x] = sum;
    __syncthreads();
    for (int half = groups / 2; half > 0; half /= 2) {
      if (group < half) slots[threadIdx.x] += slots[threadIdx.x + half * across];
      __syncthreads();
    }
    if (group == 0 && result < total) put(result, slots[lane]);
    __syncthreads();
  }
}

// reduce_any: SUMS gradients summed over the same axes, and one that is not summed, in one pass.
// Layout   dout and weight by Strides over retained axes (the results) and summed axes, in any order
// Grid     blocks of results × splits of the sum      Block  SUM_THREADS, 2^bits of them along the innermost axis
// Needs    V > 1: innermost axis a multiple of V, operands aligned      Writes  first, second, and other unless null
// Why      every pattern of broadcasting reads dout and weight once; the last block of a group adds up its partials,
//          so that no block waits. ROWS: the innermost axis is summed. SPREAD: one weight for a vector, else as many.
template <typename T, int V, bool ROWS, bool SPREAD, int SUMS>
__global__ void __launch_bounds__(SUM_THREADS, SUM_RESIDENT) reduce_any(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ first, T* __restrict__ second,
    T* __restrict__ other, Factor<Wide<T>> to_first, Factor<Wide<T>> to_second, Factor<Wide<T>> to_other, Part kept,
    Part summed, int bits, Partials<Wide<T>> partials) {
  using A = Wide<T>;
  constexpr int EACH = ROWS ? 1 : V, WEIGHTS = SPREAD ? 1 : V;
  __shared__ A slots[SUMS][EACH][SUM_THREADS];
  const int fast = threadIdx.x & ((1 << bits) - 1), slow = threadIdx.x >> bits;
  const int lanes = ROWS ? 1 << bits : SUM_THREADS >> bits, columns = ROWS ? SUM_THREADS >> bits : 1 << bits;
  const int lane = ROWS ? fast : slow, column = ROWS ? slow : fast;
  const unsigned int unit = blockIdx.x * columns + column, end = unit < kept.units ? summed.units : 0;
  const unsigned int nearest = min(unit, kept.units - 1);
  const long long in_dout = strided_offset(nearest, kept.axes, kept.dout);
  const T* const weights = weight == nullptr ? nullptr : weight + strided_offset(nearest, kept.axes, kept.weight);
  A sums[SUMS][EACH] = {};
  const unsigned int step = lanes * gridDim.y, begin = blockIdx.y * lanes;
  // Adds UNROLL units from `start` on; offset(index, strides): of a summed index.
  const auto take = [&](unsigned int start, auto unrolled, auto&& offset) {
    constexpr int UNROLL = decltype(unrolled)::value;
    VectorWord<T, V> loaded[UNROLL];
    VectorWord<T, WEIGHTS> shares[UNROLL];
    long long at[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const unsigned int index = start + u * step;
      const bool valid = index < end;
      at[u] = in_dout + offset(valid ? index : start, summed.dout);
      loaded[u] = fetch_where<T, V, false>(dout + at[u], valid);
      if (weights != nullptr) {
        shares[u] = fetch_where<T, WEIGHTS, false>(weights + offset(valid ? index : start, summed.weight), valid);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      if (start + u * step >= end) break;
      const Vector<T, V> given = as_vector<T, V>(loaded[u]);
      Vector<T, WEIGHTS> parts{};
      if (weights != nullptr) parts = as_vector<T, WEIGHTS>(shares[u]);
      Vector<T, V> rest;
      A few[SUMS][EACH] = {};
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(given.at[i]), part = weights != nullptr ? widen(parts.at[SPREAD ? 0 : i]) : A(0);
        few[0][ROWS ? 0 : i] += (to_first.offset + to_first.sign * part) * value;
        if constexpr (SUMS == 2) few[1][ROWS ? 0 : i] += (to_second.offset + to_second.sign * part) * value;
        rest.at[i] = narrow<T>((to_other.offset + to_other.sign * part) * value);
      }
#pragma unroll
      for (int s = 0; s < SUMS; ++s) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) sums[s][i] += few[s][i];
      }
      if (other != nullptr) store<T, V>(other + at[u], rest);
    }
  };
  const auto direct = [](unsigned int index, const Strides<>& strides) { return index * strides.at[0][0]; };
  const auto walked = [&](unsigned int index, const Strides<>& strides) {
    return strided_offset(index, summed.axes, strides);
  };
  const auto loop = [&](auto unrolled, auto&& offset) {
    const unsigned int further = decltype(unrolled)::value * step;
    for (unsigned int start = begin + lane; start < end; start += further) take(start, unrolled, offset);
  };
  if (summed.axes.inner > 0) {
    loop(Count<(V > 1 ? 4 : 8)>{}, walked);
  } else if (begin + step < summed.units) {
    loop(Count<4>{}, direct);
  } else {  // short code: a tiny kernel is bound by instruction fetch
    take(begin + lane, Count<1>{}, direct);
  }
  const long long total = static_cast<long long>(kept.units) * EACH;
  const auto put = [&](int s, long long result, A sum) { (s == 0 ? first : second)[result] = narrow<T>(sum); };
  // Lanes of a result are `apart` threads apart, over `span` threads: those of a warp are merged first, then warps.
  const int apart = ROWS ? 1 : columns, span = ROWS ? lanes : SUM_THREADS;
  for (int distance = apart; distance < min(span, 32); distance *= 2) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) sums[s][i] += __shfl_xor_sync(0xffffffffu, sums[s][i], distance);
    }
  }
  if (span > 32 && apart < span) {
    const int further = max(apart, 32);
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) slots[s][i][threadIdx.x] = sums[s][i];
    }
    __syncthreads();
    for (int at = further; lane == 0 && at < span; at += further) {
#pragma unroll
      for (int s = 0; s < SUMS; ++s) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) sums[s][i] += slots[s][i][threadIdx.x + at];
      }
    }
  }
  if (lane == 0 && unit < kept.units) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const long long result = static_cast<long long>(unit) * EACH + i;
        if (gridDim.y == 1) {
          put(s, result, sums[s][i]);
        } else {
          partials.splits[(static_cast<long long>(blockIdx.y) * SUMS + s) * total + result] = sums[s][i];
        }
      }
    }
  }
  if (gridDim.y == 1) return;
  const int groups = (gridDim.y + FIX_UP - 1) / FIX_UP, group = blockIdx.y / FIX_UP;
  const int members = min(FIX_UP, static_cast<int>(gridDim.y) - group * FIX_UP);
  unsigned int* const arrivals = partials.arrivals + blockIdx.x * (groups + 1);
  if (!arrive_last(arrivals + 1 + group, members)) return;
  const long long origin = static_cast<long long>(blockIdx.x) * columns * EACH;
#pragma unroll
  for (int s = 0; s < SUMS; ++s) {
    sum_partials(partials.splits + (static_cast<long long>(group) * FIX_UP * SUMS + s) * total, members, SUMS * total,
                 total, origin, columns * EACH, slots[0][0], [&](long long result, A sum) {
                   if (groups == 1) return put(s, result, sum);
                   partials.groups[(static_cast<long long>(group) * SUMS + s) * total + result] = sum;
                 });
  }
  if (groups == 1 || !arrive_last(arrivals, groups)) return;
#pragma unroll
  for (int s = 0; s < SUMS; ++s) {
    sum_partials(partials.groups + s * total, groups, SUMS * total, total, origin, columns * EACH, slots[0][0],
                 [&](long long result, A sum) { put(s, result, sum); });
  }
}
