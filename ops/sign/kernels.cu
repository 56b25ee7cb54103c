// sign, by bits for floats: subnormal numbers have one, both zeros do not, NaN stays.
#include "span.cuh"

template <typename T>
__device__ __forceinline__ T sign_of(T x) {
  return T(x > T(0)) - T(x < T(0));
}
__device__ __forceinline__ unsigned char sign_of(unsigned char x) { return x != 0; }
__device__ __forceinline__ float sign_of(float x) {
  const unsigned int bits = __float_as_uint(x), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return x;
  return size == 0 ? 0.0f : __uint_as_float((bits & 0x80000000u) | 0x3f800000u);
}
__device__ __forceinline__ double sign_of(double x) { return x != x ? x : double(x > 0) - double(x < 0); }
__device__ __forceinline__ unsigned short sign_of_bits(unsigned short bits, unsigned short infinity, unsigned short one) {
  const unsigned short size = bits & 0x7fff;
  if (size > infinity) return bits;
  return size == 0 ? 0 : (bits & 0x8000) | one;
}
__device__ __forceinline__ __half sign_of(__half x) {
  return __ushort_as_half(sign_of_bits(__half_as_ushort(x), 0x7c00, 0x3c00));
}
__device__ __forceinline__ __nv_bfloat16 sign_of(__nv_bfloat16 x) {
  return __ushort_as_bfloat16(sign_of_bits(__bfloat16_as_ushort(x), 0x7f80, 0x3f80));
}
__device__ __forceinline__ float2 sign_of(float2 x) {
  const float size = hypotf(x.x, x.y);
  return size == 0.0f ? float2{0.0f, 0.0f} : float2{x.x / size, x.y / size};
}
__device__ __forceinline__ double2 sign_of(double2 x) {
  const double size = hypot(x.x, x.y);
  return size == 0.0 ? double2{0.0, 0.0} : double2{x.x / size, x.y / size};
}

template <typename T, int V, int P>
__global__ void __launch_bounds__(SPAN_THREADS<P>) sign(
    const T* __restrict__ x, T* __restrict__ out, long long packs, long long size) {
  const Share share = share_of(packs);
  const long long tail = tail_of<V>(packs, size);
  Span<T, V, P> span;
  span.load(x, share);
#pragma unroll
  for (int i = 0; i < P * V; ++i) span.at[i / V].at[i % V] = sign_of(span.at[i / V].at[i % V]);
  span.store(out, share);
  if (tail < size) out[tail] = sign_of(x[tail]);
}
