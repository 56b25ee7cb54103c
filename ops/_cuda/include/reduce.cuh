// Building blocks of reductions: the functor, sums over lanes, warps and blocks, and partial results of several blocks.
//
// A functor F defines the reduction. Members:
//   Input, Acc, Output; constexpr bool TWO: whether a second tensor of the same shape is read
//   Input neutral() const: a neutral element
//   Acc identity() const; Acc take(Acc, Input, Input) const; Acc merge(Acc, Acc) const; Output finish(Acc) const
//
// Kernels, named reduce_<layout>_<scope>; ops/_cuda/reduction/plan.py chooses one and says why:
//   reduce_elements.cuh  reduce_elements_lanes: any set of axes, element by element
//   reduce_rows.cuh      reduce_rows_lanes, reduce_rows_block, reduce_rows_grid, reduce_rows_once: contiguous sums
//   reduce_columns.cuh   reduce_columns_grid, reduce_slabs_block: sums along outer axes, in vectors along the inner one
//
// STREAM: loads are L2 evict_first, so that lines of other tensors stay. It pays for medium sizes that are not in cache:
// no dirty line has to be written back first.
#pragma once
#include "divide.cuh"
#include "flagged.cuh"
#include "vector.cuh"

// Whether f.beside<WHOLE>(index, vector) writes something for what is read at `index` of x, in reduce_elements_lanes,
// reduce_columns_grid and those for rows but reduce_rows_block. If rows are not WHOLE vectors, two threads are given a vector that is in two rows, and the last one
// may end past x. Vectors of x are evict_last, as a kernel has just written them or will read what is written.
template <typename F>
constexpr bool WRITES_BESIDE = false;

// Members of functors that add elements in the accumulating type, a base without fields; `finish` is theirs.
template <typename T>
struct Sum {
  using Input = T;
  using Output = T;
  using Acc = Wide<T>;
  static constexpr bool TWO = false;
  __device__ __forceinline__ T neutral() const { return narrow<T>(Acc(0)); }
  __device__ __forceinline__ Acc identity() const { return Acc(0); }
  __device__ __forceinline__ Acc take(Acc sum, T element, T) const { return sum + widen(element); }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const { return a + b; }
};

constexpr int REDUCE_THREADS = 256;
constexpr int LINE_VECTORS = 8;    // vectors of 16 bytes in a cache line
constexpr int MOST_THREADS = 2048;  // resident threads of a multiprocessor
constexpr unsigned int EVERY_LANE = 0xffffffffu;

template <typename A>
__device__ __forceinline__ A shuffle_xor(A value, int step) {
  if constexpr (sizeof(A) == 16) {
    double2 pair = *reinterpret_cast<double2*>(&value);
    pair.x = __shfl_xor_sync(EVERY_LANE, pair.x, step);
    pair.y = __shfl_xor_sync(EVERY_LANE, pair.y, step);
    return *reinterpret_cast<A*>(&pair);
  } else if constexpr (sizeof(A) == 8) {
    const unsigned long long bits = __shfl_xor_sync(EVERY_LANE, *reinterpret_cast<unsigned long long*>(&value), step);
    return *reinterpret_cast<const A*>(&bits);
  } else {
    const unsigned int bits = __shfl_xor_sync(EVERY_LANE, *reinterpret_cast<unsigned int*>(&value), step);
    return *reinterpret_cast<const A*>(&bits);
  }
}

template <typename F>
__device__ __forceinline__ typename F::Acc merge_lanes(const F& f, typename F::Acc mine, int lanes) {
  for (unsigned int step = lanes / 2u; step > 0; step /= 2) mine = f.merge(mine, shuffle_xor(mine, step));
  return mine;
}

template <typename F>
__device__ __forceinline__ typename F::Acc merge_block(const F& f, typename F::Acc mine) {
  __shared__ typename F::Acc slots[REDUCE_THREADS / 32];
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < REDUCE_THREADS / 32; ++warp) mine = f.merge(mine, slots[warp]);
  }
  return mine;  // in thread 0
}

// Merges over groups of `lanes` threads, a power of two and several warps; the result is in the first thread of each group.
template <typename F>
__device__ __forceinline__ typename F::Acc merge_warps(const F& f, typename F::Acc mine, int lanes) {
  __shared__ typename F::Acc slots[REDUCE_THREADS / 32];
  const int warp = threadIdx.x / 32, warps = lanes / 32;
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[warp] = mine;
  __syncthreads();
  return merge_lanes(f, slots[(warp & -warps) + (threadIdx.x & (warps - 1))], warps);
}

// Merges over the block of up to THREADS threads; the result is in its first thread.
template <int THREADS, typename F>
__device__ __forceinline__ typename F::Acc merge_at_end(
    const F& f, typename F::Acc mine, typename F::Acc* slots, int threads = THREADS) {
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threads < THREADS) {
    if (threadIdx.x >= 32) return mine;
    return merge_lanes(f, static_cast<int>(threadIdx.x) * 32 < threads ? slots[threadIdx.x] : f.identity(), 32);
  }
  return threadIdx.x < 32 ? merge_lanes(f, slots[threadIdx.x % (THREADS / 32)], THREADS / 32) : mine;
}

// Merges `count` flagged partials, `apart` from each other, this lane's of `lanes`, in a fixed order, and resets them.
template <int IN_FLIGHT, typename F>
__device__ __forceinline__ typename F::Acc collect(
    const F& f, typename F::Acc mine, unsigned long long* flagged, int count, int lane, int lanes, int apart = 1) {
  using Acc = typename F::Acc;
  for (int at = lane; at < count; at += IN_FLIGHT * lanes) {
    unsigned long long* const words = flagged + at * apart * WORDS<Acc>;
    Acc found[IN_FLIGHT];
    poll_all(found, words, lanes * apart, (count - at) * apart, 1);
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      if (at + i * lanes >= count) continue;
      mine = f.merge(mine, found[i]);
      reset<Acc>(words + i * lanes * apart * WORDS<Acc>);
    }
  }
  return mine;
}

// Merges the `splits` flagged partials of each row in the `block`-th collecting block: `lanes` threads per row, a warp or
// the whole block. One of them calls put(row, sum).
template <int THREADS, typename F, typename Put>
__device__ __forceinline__ void collect_rows(
    const F& f, typename F::Acc* slots, int block, int rows, int splits, int lanes, unsigned long long* flagged,
    const Put& put) {
  const int lane = threadIdx.x & (lanes - 1), row = (block * THREADS + threadIdx.x) / lanes;
  typename F::Acc all = f.identity();
  if (row < rows) {
    all = collect<4>(f, all, flagged + static_cast<long long>(row) * splits * WORDS<typename F::Acc>, splits, lane, lanes);
  }
  all = lanes == 32 ? merge_lanes(f, all, 32) : merge_at_end<THREADS>(f, all, slots);
  if (lane == 0 && row < rows) put(row, all);
}
