// scale x + bias, or scale (x + bias). Integers arrive as unsigned, so that overflow wraps.
#include "flat.cuh"

template <typename T>
struct Held {  // what an element is computed in
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

// factor: a tensor of one element, or null and `scale` holds the number.
template <typename T, int V, Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) scale(
    const T* __restrict__ x, T* __restrict__ out, const T* __restrict__ factor, typename Held<T>::type number,
    typename Held<T>::type bias, bool after, long long vectors, long long size, unsigned int kept) {
  using H = typename Held<T>::type;
  const Spot<V, EXTENT> spot(vectors, blockIdx.x < kept);
  Vector<T, V> vector = spot.load(x);
  const H by = factor == nullptr ? number : static_cast<H>(*factor);
  const long long tail = tail_of<V, EXTENT>(vectors, size);
#pragma unroll
  for (int i = 0; i < V; ++i) vector.at[i] = apply<T>(vector.at[i], by, bias, after);
  spot.store(out, vector);
  if (tail < size) out[tail] = apply<T>(x[tail], by, bias, after);
}
