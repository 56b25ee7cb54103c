// Reductions of (a, r1, b, r2, c) over r1 and r2, as ops._core.axes.Reduction lays them out.
//
// A functor F says what is reduced. Members:
//   Input, Acc, Output; constexpr bool TWO: whether a second tensor of the same shape is read
//   Input neutral() const: an element that changes nothing
//   Acc identity() const; Acc take(Acc, Input, Input) const; Acc merge(Acc, Acc) const; Output finish(Acc) const
//
// reduce_rows   (rows, length): 1 to 32 lanes per row, 16-byte loads wherever a row begins
// reduce_long   (rows, length): blocks share a row; the last one to finish adds up, in a fixed order
// reduce_columns the general layout: lanes along c, blocks share the reduced axes as above
#pragma once
#include "divide.cuh"
#include "pack.cuh"

constexpr int REDUCE_THREADS = 256;
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
  for (int step = lanes / 2; step > 0; step /= 2) mine = f.merge(mine, shuffle_xor(mine, step));
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

// True in the last of `blocks` blocks to come here; leaves the ticket at zero for the next launch.
__device__ __forceinline__ bool arrive_last(unsigned int* ticket, unsigned int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

template <typename A>
__device__ __forceinline__ A read_partial(const A* from) {  // written by another block of this launch
  if constexpr (sizeof(A) == 16) {
    const double2 pair = __ldcg(reinterpret_cast<const double2*>(from));
    return *reinterpret_cast<const A*>(&pair);
  } else if constexpr (sizeof(A) == 8) {
    const unsigned long long bits = __ldcg(reinterpret_cast<const unsigned long long*>(from));
    return *reinterpret_cast<const A*>(&bits);
  } else {
    const unsigned int bits = __ldcg(reinterpret_cast<const unsigned int*>(from));
    return *reinterpret_cast<const A*>(&bits);
  }
}

// Elements [begin, end), fewer than 2^31, by lane `lane` of `lanes`. Packs are aligned in memory, so the first
// and the last may hold elements that are not ours: those become neutral. An aligned pack never leaves
// the allocation, whose granules are larger. `shift` is how many elements x lies past an aligned address.
template <typename F, int V, int UNROLL, bool STREAM>
__device__ __forceinline__ typename F::Acc take_range(
    const F& f, const typename F::Input* x, const typename F::Input* second, long long begin, long long end, int shift,
    int lane, int lanes) {
  using T = typename F::Input;
  typename F::Acc mine = f.identity();
  const long long first = (begin + shift) / V * V - shift;
  const T* const from = x + first;
  const T* const other = F::TWO ? second + first : x;
  const int low = static_cast<int>(begin - first), high = static_cast<int>(end - first);
  for (int start = lane * V; start < high; start += UNROLL * lanes * V) {
    Pack<T, V> one[UNROLL], two[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if (at >= high) continue;
      one[u] = STREAM ? load_streaming<T, V>(from + at) : load<T, V>(from + at);
      if constexpr (F::TWO) two[u] = STREAM ? load_streaming<T, V>(other + at) : load<T, V>(other + at);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if (at >= high) continue;
      if (at < low || at + V > high) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (at + i >= low && at + i < high) continue;
          one[u].at[i] = f.neutral();
          if constexpr (F::TWO) two[u].at[i] = f.neutral();
        }
      }
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, one[u].at[i], F::TWO ? two[u].at[i] : one[u].at[i]);
    }
  }
  return mine;
}

template <typename F, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_rows(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, long long rows, long long length, int shift, int lanes) {
  const long long row = static_cast<long long>(blockIdx.x) * (REDUCE_THREADS / lanes) + threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  typename F::Acc mine = f.identity();
  if (row < rows) {
    mine = take_range<F, V, 4, true>(f, x, second, row * length, (row + 1) * length, shift, lane, lanes);
  }
  mine = merge_lanes(f, mine, lanes);
  if (lane == 0 && row < rows) out[row] = f.finish(mine);
}

// grid (rows, splits); partials (rows, splits), tickets (rows).
template <typename F, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_long(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, long long rows, long long length, int shift, unsigned int* tickets,
    typename F::Acc* partials) {
  const long long row = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  const long long begin = row * length + length * split / splits, end = row * length + length * (split + 1) / splits;
  typename F::Acc mine =
      take_range<F, V, 4, false>(f, x, second, begin, end, shift, threadIdx.x, REDUCE_THREADS);
  mine = merge_block(f, mine);
  if (splits == 1) {
    if (threadIdx.x == 0) out[row] = f.finish(mine);
    return;
  }
  if (threadIdx.x == 0) partials[row * splits + split] = mine;
  if (!arrive_last(&tickets[row], splits)) return;
  mine = f.identity();
  for (int other = threadIdx.x; other < splits; other += REDUCE_THREADS) {
    mine = f.merge(mine, read_partial(&partials[row * splits + other]));
  }
  mine = merge_block(f, mine);
  if (threadIdx.x == 0) out[row] = f.finish(mine);
}

struct Layout {  // (a, r1, b, r2, c), and how to find r1 and r2 of a reduced index
  long long a, r1, b, r2, c;
};

// block (lanes, rows): `lanes` columns of c with V elements each; grid (column blocks, a b, splits).
// partials (splits, a b c), tickets (column blocks a b).
template <typename F, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_columns(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, Layout layout, unsigned int* tickets, typename F::Acc* partials) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ __align__(16) unsigned char memory[REDUCE_THREADS * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  const long long column = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  const bool ours = column < layout.c;
  const long long a = blockIdx.y / layout.b, b = blockIdx.y % layout.b;
  const long long length = layout.r1 * layout.r2, splits = gridDim.z;
  const long long end = length * (blockIdx.z + 1) / splits;
  Acc mine[V];
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i] = f.identity();
  if (ours) {
#pragma unroll 4
    for (long long index = length * blockIdx.z / splits + threadIdx.y; index < end; index += blockDim.y) {
      const long long i1 = layout.r2 == 1 ? index : index / layout.r2, i2 = layout.r2 == 1 ? 0 : index % layout.r2;
      const long long at = (((a * layout.r1 + i1) * layout.b + b) * layout.r2 + i2) * layout.c + column;
      const Pack<T, V> one = load<T, V>(x + at);
      Pack<T, V> two = one;
      if constexpr (F::TWO) two = load<T, V>(second + at);
#pragma unroll
      for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], one.at[i], two.at[i]);
    }
  }
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
  const long long base = static_cast<long long>(blockIdx.y) * layout.c;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    slots[slot] = mine[i];
    __syncthreads();
    for (int step = blockDim.y / 2; step > 0; step /= 2) {
      if (threadIdx.y < step) slots[slot] = f.merge(slots[slot], slots[slot + step * blockDim.x]);
      __syncthreads();
    }
    if (threadIdx.y == 0 && ours) {
      if (splits == 1) {
        out[base + column + i] = f.finish(slots[slot]);
      } else {
        partials[blockIdx.z * layout.a * layout.b * layout.c + base + column + i] = slots[slot];
      }
    }
    __syncthreads();
  }
  if (splits == 1) return;
  if (!arrive_last(&tickets[blockIdx.y * gridDim.x + blockIdx.x], splits)) return;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x * V;
  for (long long place = first + slot; place < layout.c && place < first + blockDim.x * V;
       place += blockDim.x * blockDim.y) {
    Acc total = f.identity();
    for (long long split = 0; split < splits; ++split) {
      total = f.merge(total, read_partial(&partials[split * layout.a * layout.b * layout.c + base + place]));
    }
    out[base + place] = f.finish(total);
  }
}
