// scale x + bias, or scale (x + bias). Integers arrive as unsigned, so that overflow wraps.
#include "flat.cuh"

template <typename T>
struct Held {  // type of the computation
  using type = T;
};
template <>
struct Held<__half> {
  using type = float;
};
template <>
struct Held<__nv_bfloat16> {
  using type = float;
};

template <typename T>
__device__ __forceinline__ T apply(T x, typename Held<T>::type scale, typename Held<T>::type bias, bool after) {
  using H = typename Held<T>::type;
  const H number = static_cast<H>(x);
  return static_cast<T>(after ? number * scale + bias : (number + bias) * scale);
}

// scale: out = scale x + bias, or scale (x + bias), a vector of V elements per thread, and an element per thread after them.
// Layout   x, out flat; factor: one element, or null for `number`          Grid, Block  as in flat.cuh
// Needs    EXTENT, vectors, threads and evict_last_blocks as in flat.cuh            Writes  out[size]
// Why      a factor on the device needs no synchronization
template <typename T, int V, Extent EXTENT>
__global__ void __launch_bounds__(flat_threads<V>()) scale(
    const T* __restrict__ x, T* __restrict__ out, const T* __restrict__ factor, typename Held<T>::type number,
    typename Held<T>::type bias, bool after, long long vectors, long long threads, unsigned int evict_last_blocks) {
  using H = typename Held<T>::type;
  const VectorAccess<V, EXTENT> access(vectors, threads, blockIdx.x < evict_last_blocks);
  Vector<T, V> vector = access.load(x);
  const H by = factor == nullptr ? number : static_cast<H>(*factor);
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = apply<T>(vector.at[i], by, bias, after);
  access.store(out, vector);
}
