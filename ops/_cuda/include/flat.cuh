// Flat pointwise kernels: a pack a thread.
#pragma once
#include "pack.cuh"

constexpr int FLAT_THREADS = 256;

// What is known of a launch. ANY: nothing. WHOLE: every thread has a pack, and a kernel of a microsecond nothing to compare
// before it loads. LARGE: not all of a result finds places among lines that are kept. Then some blocks' stores are, and no
// loads, which would take those places from them: as fast from memory as all kept, and up to 7 % faster from the cache.
enum Extent { ANY, WHOLE, LARGE };

// Where a thread's pack of V elements lies among `packs`, in blocks of THREADS. keeps: what a LARGE block does.
template <int V, Extent EXTENT = ANY, int THREADS = FLAT_THREADS>
struct Spot {
  long long at;  // elements before it
  bool there, keeps;

  __device__ __forceinline__ explicit Spot(long long packs, bool keeps = true) : keeps(EXTENT != LARGE || keeps) {
    const long long first = static_cast<long long>(blockIdx.x) * THREADS;
    const int left = static_cast<int>(min(packs - first, static_cast<long long>(THREADS)));  // of the block
    at = (first + threadIdx.x) * V;
    there = EXTENT == WHOLE || static_cast<int>(threadIdx.x) < left;
  }

  template <typename T>
  __device__ __forceinline__ Pack<T, V> load(const T* from) const {
    if constexpr (EXTENT == LARGE) return unpacked<T, V>(fetch_where<T, V, false>(from + at, there));
    return load_kept<T, V>(from + at, there);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to, const Pack<T, V>& pack) const {
    if (!there) return;
    if (keeps) {
      store_kept<T, V>(to + at, pack);
    } else {
      ::store<T, V>(to + at, pack);
    }
  }
};

// The element behind the last pack that is this thread's, `size` and more where there is none.
template <int V, Extent EXTENT = ANY>
__device__ __forceinline__ long long tail_of(long long packs, long long size) {
  return EXTENT != WHOLE && blockIdx.x == 0 ? packs * V + threadIdx.x : size;
}
