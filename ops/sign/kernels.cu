// sign, by bits for floats: subnormal numbers have one, both zeros do not, NaN stays.
#include "flat.cuh"

template <typename T>
__device__ __forceinline__ T sign_of(T x) {
  return T(x > T(0)) - T(x < T(0));
}
__device__ __forceinline__ unsigned char sign_of(unsigned char x) { return x != 0; }
__device__ __forceinline__ float sign_of(float x) {
  const unsigned int bits = __float_as_uint(x), size = bits & 0x7fffffffu;
  const unsigned int sign = size == 0 ? 0u : (bits & 0x80000000u) | 0x3f800000u;
  return __uint_as_float(size > 0x7f800000u ? bits : sign);
}
__device__ __forceinline__ double sign_of(double x) { return x != x ? x : double(x > 0) - double(x < 0); }
// Signs of two numbers: the sign bit is combined with `one` if the number is not zero; NaN also retains its bits.
template <typename X2>
__device__ __forceinline__ X2 sign_of_both(X2 x, unsigned int one) {
  const unsigned int bits = *reinterpret_cast<const unsigned int*>(&x), nan = __hneu2_mask(x, x);
  const unsigned int sign = __hneu2_mask(x, X2{}) & ((bits & 0x80008000u) | one | (bits & nan));
  return *reinterpret_cast<const X2*>(&sign);
}
__device__ __forceinline__ __half2 sign_of(__half2 x) { return sign_of_both(x, 0x3c003c00u); }
__device__ __forceinline__ __nv_bfloat162 sign_of(__nv_bfloat162 x) { return sign_of_both(x, 0x3f803f80u); }
__device__ __forceinline__ __half sign_of(__half x) { return sign_of(__half2{x, x}).x; }
__device__ __forceinline__ __nv_bfloat16 sign_of(__nv_bfloat16 x) { return sign_of(__nv_bfloat162{x, x}).x; }
// Signs of a word of integers of BITS bits: the lowest bit of each that is not zero, and all bits of negative ones.
template <int BITS, bool NEGATIVE>
struct Integers {
  unsigned int word;
};
template <int BITS, bool NEGATIVE>
__device__ __forceinline__ Integers<BITS, NEGATIVE> sign_of(Integers<BITS, NEGATIVE> x) {
  constexpr unsigned int ALL = (1u << BITS) - 1, LOWEST = 0xffffffffu / ALL, HIGHEST = LOWEST << (BITS - 1);
  const unsigned int some = ((x.word & ~HIGHEST) + ~HIGHEST) | x.word;  // the highest bit of each that is not zero
  const unsigned int one = (some & HIGHEST) >> (BITS - 1), negative = (x.word & HIGHEST) >> (BITS - 1);
  return {NEGATIVE ? one | negative * ALL : one};
}
// x / |x|. Large x is scaled, so that the magnitude cannot overflow; an infinite part counts as 1 and the other as 0.
template <typename P, typename A>
__device__ __forceinline__ P sign_of_pair(P x, A large) {
  if (fmax(fabs(x.x), fabs(x.y)) > large) {
    const bool first = isinf(x.x), second = isinf(x.y);
    if (first != second) {
      x = {first ? copysign(A(1), x.x) : x.x * 0, second ? copysign(A(1), x.y) : x.y * 0};
    } else {
      x = {x.x * A(0.25), x.y * A(0.25)};
    }
  }
  const A size = hypot(x.x, x.y);
  return size == 0 ? P{0, 0} : P{x.x / size, x.y / size};
}
__device__ __forceinline__ float2 sign_of(float2 x) { return sign_of_pair(x, 1e38f); }
__device__ __forceinline__ double2 sign_of(double2 x) { return sign_of_pair(x, 1e307); }

template <typename T, bool SINGLE>
struct Handled {  // type of one computation
  using type = T;
};
template <>
struct Handled<__half, false> {
  using type = __half2;
};
template <>
struct Handled<__nv_bfloat16, false> {
  using type = __nv_bfloat162;
};
template <>
struct Handled<signed char, false> {
  using type = Integers<8, true>;
};
template <>
struct Handled<unsigned char, false> {
  using type = Integers<8, false>;
};
template <>
struct Handled<short, false> {
  using type = Integers<16, true>;
};

// sign: a vector of V elements per thread, and an element per thread after them.
// Layout   x, out flat                    Grid, Block  as in flat.cuh
// Needs    EXTENT, vectors, threads and evict_last_blocks as in flat.cuh            Writes  out[size]
template <typename T, int V, Extent EXTENT>
__global__ void __launch_bounds__(flat_threads<V>()) sign(
    const T* __restrict__ x, T* __restrict__ out, long long vectors, long long threads, unsigned int evict_last_blocks) {
  const VectorAccess<V, EXTENT> access(vectors, threads, blockIdx.x < evict_last_blocks);
  Vector<T, V> vector = access.load(x);
  using H = typename Handled<T, V == 1>::type;
  H* const handled = reinterpret_cast<H*>(vector.at);
#pragma unroll
  for (int i = 0; i < V * sizeof(T) / sizeof(H); ++i) handled[i] = sign_of(handled[i]);
  access.store(out, vector);
}
