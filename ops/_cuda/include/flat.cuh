// Flat pointwise kernels: a vector a thread.
#pragma once
#include "vector.cuh"

constexpr int FLAT_THREADS = 256;

// What is known of a launch. ANY: nothing. WHOLE: every thread has a vector, and a kernel of a microsecond nothing to compare
// before it loads. LARGE: not all of a result finds places among lines that are kept. Then some blocks' stores are, and no
// loads, which would take those places from them: as fast from memory as all kept, and up to 7 % faster from the cache.
enum Extent { ANY, WHOLE, LARGE };

// Where a thread's vector of V elements lies among `vectors`, in blocks of THREADS. evicts_last: what a LARGE block does.
template <int V, Extent EXTENT = ANY, int THREADS = FLAT_THREADS>
struct VectorAccess {
  long long at;  // elements before it
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

// The element behind the last vector that is this thread's, `size` and more where valid is none.
template <int V, Extent EXTENT = ANY>
__device__ __forceinline__ long long tail_of(long long vectors, long long size) {
  return EXTENT != WHOLE && blockIdx.x == 0 ? vectors * V + threadIdx.x : size;
}
