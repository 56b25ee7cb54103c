// scale x + bias, or scale (x + bias). Integers come as unsigned, so that overflow wraps.
#include "span.cuh"

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
template <typename T, int V, int P, bool WHOLE>
__global__ void __launch_bounds__(SPAN_THREADS<P>) scale(
    const T* __restrict__ x, T* __restrict__ out, const T* __restrict__ factor, typename Held<T>::type number,
    typename Held<T>::type bias, bool after, long long packs, long long size) {
  using H = typename Held<T>::type;
  const Share share = share_of<WHOLE>(packs);
  Span<T, V, P> span;
  span.load(x, share);
  const H by = factor == nullptr ? number : static_cast<H>(*factor);
  const long long tail = WHOLE ? size : tail_of<V>(packs, size);
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    T& element = span.at[i / V].at[i % V];
    element = apply<T>(element, by, bias, after);
  }
  span.store(out, share);
  if (!WHOLE && tail < size) out[tail] = apply<T>(x[tail], by, bias, after);
}
