// Flat pointwise kernels: a vector per thread. Grid: vectors / FLAT_THREADS; block: FLAT_THREADS; the first block also
// computes the elements after the last vector.
#pragma once
#include "vector.cuh"

constexpr int FLAT_THREADS = 256;

// Extent of a launch. ANY: no assumption. WHOLE: every thread has a vector, so that a short kernel needs no comparison
// before its loads. LARGE: the result exceeds the evict_last share of L2. Then only some blocks store with evict_last, and
// no loads use it: as fast from memory as evict_last everywhere, and up to 7 % faster from cache.
enum Extent { ANY, WHOLE, LARGE };

// A thread's vector of V elements among `vectors`, in blocks of THREADS. evicts_last: policy of a LARGE block's stores.
template <int V, Extent EXTENT = ANY, int THREADS = FLAT_THREADS>
struct VectorAccess {
  long long at;  // offset in elements
  bool valid, evicts_last;

  __device__ __forceinline__ explicit VectorAccess(long long vectors, bool evicts_last = true) : evicts_last(EXTENT != LARGE || evicts_last) {
    const long long first = static_cast<long long>(blockIdx.x) * THREADS;
    const int left = static_cast<int>(min(vectors - first, static_cast<long long>(THREADS)));  // of the block
    at = (first + threadIdx.x) * V;
    valid = EXTENT == WHOLE || static_cast<int>(threadIdx.x) < left;
  }

  template <typename T>
  __device__ __forceinline__ Vector<T, V> load(const T* from) const {
    if constexpr (EXTENT == LARGE) return as_vector<T, V>(fetch_where<T, V, false>(from + at, valid));
    return load_evict_last<T, V>(from + at, valid);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to, const Vector<T, V>& vector) const {
    if (!valid) return;
    if (evicts_last) {
      store_evict_last<T, V>(to + at, vector);
    } else {
      ::store<T, V>(to + at, vector);
    }
  }
};

// This thread's element after the last vector; at least `size` if there is none.
template <int V, Extent EXTENT = ANY>
__device__ __forceinline__ long long tail_of(long long vectors, long long size) {
  return EXTENT != WHOLE && blockIdx.x == 0 ? vectors * V + threadIdx.x : size;
}
