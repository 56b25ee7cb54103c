// scale x + bias, or scale (x + bias). Integers come as unsigned, so that overflow wraps.
#include "pack.cuh"

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
template <typename T, int V>
__global__ void __launch_bounds__(256) scale(
    const T* __restrict__ x, T* __restrict__ out, const T* __restrict__ factor, typename Held<T>::type number,
    typename Held<T>::type bias, bool after, long long packs, long long size) {
  using H = typename Held<T>::type;
  const H by = factor == nullptr ? number : static_cast<H>(*factor);
  const long long pack = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (pack < packs) {
    Pack<T, V> loaded = load<T, V>(x + pack * V);
#pragma unroll
    for (int i = 0; i < V; ++i) loaded.at[i] = apply<T>(loaded.at[i], by, bias, after);
    store<T, V>(out + pack * V, loaded);
  }
  const long long tail = packs * V + pack;
  if (tail < size) out[tail] = apply<T>(x[tail], by, bias, after);
}
