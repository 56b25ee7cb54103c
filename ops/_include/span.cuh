// The packs of one block in a flat pointwise kernel: P a thread, all of them loaded before the first is used.
#pragma once
#include "pack.cuh"

constexpr int BLOCK_PACKS = 256;
template <int P>
constexpr int SPAN_THREADS = BLOCK_PACKS / P;  // small blocks fill the last wave, whatever a thread moves

struct Share {  // where a block's packs begin, and how many there are from there on: one number for all its threads
  long long first;
  int count;
  bool whole = false;  // as many as the block's threads move
  __device__ __forceinline__ bool has(int pack) const { return whole || pack < count; }
};

// WHOLE: every block has as many as its threads move, and a kernel of a microsecond nothing to compare before it loads.
template <bool WHOLE = false>
__device__ __forceinline__ Share share_of(long long packs) {
  const long long first = static_cast<long long>(blockIdx.x) * BLOCK_PACKS;
  if constexpr (WHOLE) {
    return {first, BLOCK_PACKS, true};
  } else {
    return {first, static_cast<int>(min(packs - first, static_cast<long long>(BLOCK_PACKS)))};
  }
}

template <typename T, int V, int P>
struct Span {
  Pack<T, V> at[P];

  __device__ __forceinline__ void load(const T* from, const Share& share) {
    from += (share.first + threadIdx.x) * V;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      constexpr int STEP = SPAN_THREADS<P>;
      at[i] = load_kept<T, V>(from + i * STEP * V, share.has(threadIdx.x + i * STEP));
    }
  }

  __device__ __forceinline__ void store(T* to, const Share& share) const {
    to += (share.first + threadIdx.x) * V;
#pragma unroll
    for (int i = 0; i < P; ++i) {
      constexpr int STEP = SPAN_THREADS<P>;
      if (share.has(threadIdx.x + i * STEP)) store_kept<T, V>(to + i * STEP * V, at[i]);
    }
  }
};

// The element behind the last pack that is this thread's, `size` and more where there is none.
template <int V>
__device__ __forceinline__ long long tail_of(long long packs, long long size) {
  return blockIdx.x == 0 ? packs * V + threadIdx.x : size;
}
