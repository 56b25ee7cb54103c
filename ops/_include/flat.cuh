// Flat pointwise kernels: a pack a thread.
#pragma once
#include "pack.cuh"

constexpr int FLAT_THREADS = 256;

// Where a thread's pack of V elements lies among `packs`, in blocks of THREADS. WHOLE: every thread has one, and a kernel
// of a microsecond nothing to compare before it loads.
template <int V, bool WHOLE = false, int THREADS = FLAT_THREADS>
struct Spot {
  long long at;  // elements before it
  bool there;

  __device__ __forceinline__ explicit Spot(long long packs) {
    const long long first = static_cast<long long>(blockIdx.x) * THREADS;
    const int left = static_cast<int>(min(packs - first, static_cast<long long>(THREADS)));  // of the block
    at = (first + threadIdx.x) * V;
    there = WHOLE || static_cast<int>(threadIdx.x) < left;
  }

  template <typename T>
  __device__ __forceinline__ Pack<T, V> load(const T* from) const {
    return load_kept<T, V>(from + at, there);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to, const Pack<T, V>& pack) const {
    if (there) store_kept<T, V>(to + at, pack);
  }

  template <typename T>
  __device__ __forceinline__ void store_plain(T* to, const Pack<T, V>& pack) const {
    if (there) ::store<T, V>(to + at, pack);
  }
};

// The element behind the last pack that is this thread's, `size` and more where there is none.
template <int V, bool WHOLE = false>
__device__ __forceinline__ long long tail_of(long long packs, long long size) {
  return !WHOLE && blockIdx.x == 0 ? packs * V + threadIdx.x : size;
}
