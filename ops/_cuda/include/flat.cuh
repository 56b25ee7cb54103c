// Flat pointwise kernels: a vector per thread, and an element per thread after the last vector.
// Grid: threads / flat_threads<V>(); block: flat_threads<V>(). APART: size / V / flat_threads<V>()
#pragma once
#include "vector.cuh"

// FLAT_THREADS and SINGLE_THREADS are defined by ops/_cuda/pointwise.py.
// Threads per block. Blocks of single elements are larger, as the launch of more than a few dozen blocks takes longer.
template <int V>
constexpr int flat_threads() {
  return V == 1 ? SINGLE_THREADS : FLAT_THREADS;
}

// Extent of a launch. ANY: fewer than 2^31 elements, so that indices have 32 bits. VECTORS: no elements after the last
// vector. LARGE: 2^31 elements or more, or a result that exceeds the evict_last share of L2. Then only some blocks store
// with evict_last, and no loads use it: as fast from memory as evict_last everywhere, and up to 7 % faster from cache.
// APART: fewer than 2^31 elements at any address: the elements of a thread lie a block apart, and are accessed one by one.
enum Extent { ANY, VECTORS, LARGE, APART };

template <Extent EXTENT>
struct Indexed {
  using type = long long;
};
template <>
struct Indexed<ANY> {
  using type = unsigned int;
};

// A thread's V elements, or its single element after the last vector. Loads do not branch, as parameters that are read after
// a branch arrive late: surplus threads load what the last thread does, and store nothing. `valid`: whether a thread is none.
// evicts_last: policy of a LARGE block's stores.
template <int V, Extent EXTENT = ANY, int THREADS = flat_threads<V>()>
struct VectorAccess {
  using Index = typename Indexed<EXTENT>::type;
  static constexpr bool SINGLES = V > 1 && EXTENT != VECTORS;
  Index at;  // offset in elements
  bool valid, whole, evicts_last;

  // threads: vectors, and elements after the last one; at least one
  __device__ __forceinline__ VectorAccess(long long vectors, long long threads, bool evicts_last = true)
      : evicts_last(EXTENT != LARGE || evicts_last) {
    const Index own = static_cast<Index>(blockIdx.x) * THREADS + threadIdx.x, last = static_cast<Index>(threads) - 1;
    const Index before = static_cast<Index>(vectors);
    valid = own <= last;
    const Index index = valid ? own : last;  // which assume_launch may tell, unlike a minimum
    whole = !SINGLES || index < before;
    at = whole ? index * V : index + before * (V - 1);
  }

  template <typename T>
  __device__ __forceinline__ Vector<T, V> load(const T* from) const {
    if constexpr (SINGLES) return as_vector<T, V>(fetch_either<T, V, EXTENT != LARGE>(from + at, whole));
    return EXTENT == LARGE ? ::load<T, V>(from + at) : load_evict_last<T, V>(from + at);
  }

  // wanted: the same for all threads
  template <typename T>
  __device__ __forceinline__ void store(T* to, const Vector<T, V>& vector, bool wanted = true) const {
    const bool here = valid && wanted;
    if (evicts_last) {
      store_where<T, V, true>(to + at, vector, here && whole);
    } else {
      store_where<T, V, false>(to + at, vector, here && whole);
    }
    if constexpr (SINGLES) store_where<T, 1, false>(to + at, {vector.at[0]}, here && !whole);
  }
};

template <int V, int THREADS>
struct VectorAccess<V, APART, THREADS> {
  unsigned int at, last;

  // elements: of each tensor, at least one
  __device__ __forceinline__ VectorAccess(long long, long long elements, bool = true)
      : at(blockIdx.x * (THREADS * V) + threadIdx.x), last(static_cast<unsigned int>(elements) - 1) {}

  template <typename T>
  __device__ __forceinline__ Vector<T, V> load(const T* from) const {
    Vector<T, V> found;
#pragma unroll
    for (int i = 0; i < V; ++i) found.at[i] = from[min(at + i * THREADS, last)];
    return found;
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to, const Vector<T, V>& vector, bool wanted = true) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (wanted && at + i * THREADS <= last) to[at + i * THREADS] = vector.at[i];
    }
  }
};
