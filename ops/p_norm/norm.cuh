// Functor of p_norm by mode, and its powers and roots.
#pragma once
#include "reduce_columns.cuh"
#include "reduce_elements.cuh"
#include "reduce_rows.cuh"

enum Mode { COUNT, ABS, ROOT_3, SQUARE, ROOT_5, CUBE, POWER, LARGEST, SMALLEST };  // ROOT_3, ROOT_5: x^1.5, x^2.5

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }
__device__ __forceinline__ float root(float x) {  // to one unit in the last place
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float normal_root(float x) {  // to one unit in the last place; 0 for a subnormal number
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ double normal_root(double x) { return sqrt(x); }
__device__ __forceinline__ float reciprocal(float x) {  // to one unit in the last place
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
// Maximum or minimum; NaN if either is.
template <bool SMALLEST, typename A>
__device__ __forceinline__ A outermost(A a, A b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(A) == 4) {
    A result;
    if constexpr (SMALLEST) {
      asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    } else {
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    }
    return result;
  }
#endif
  return (SMALLEST ? b < a : b > a) || b != b ? b : a;
}
__device__ __forceinline__ float accurate_power(float x, float p) { return powf(x, p); }
__device__ __forceinline__ double accurate_power(double x, double p) { return pow(x, p); }

// x^p for x >= 0. Its error is p (|log2 x| + 1) epsilons, which the op's bound counts.
__device__ __forceinline__ float power(float x, float p) {
  float logarithm, result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(p * logarithm));
  return result;
}
// The power of a double is a call of about a microsecond: common orders, and multiples of a quarter below 8, do without.
__device__ __forceinline__ double power(double x, double p) {
  if (p == -1.0) return 1.0 / x;
  if (p == 0.5) return sqrt(x);
  if (p == 0.25) return sqrt(sqrt(x));
  if (p == 2.0) return x * x;
  if (p == 4.0) return x * x * (x * x);
  const double size = fabs(p) * 4.0;
  const int quarters = static_cast<int>(fmin(size, 32.0));
  if (quarters != size || quarters == 32) return pow(x, p);
  const double one = p < 0.0 ? 1.0 / x : x, two = one * one;
  double result = quarters & 4 ? one : 1.0;
  if (quarters & 8) result *= two;
  if (quarters & 16) result *= two * two;
  if (quarters & 3) {
    const double half = sqrt(one);
    if (quarters & 2) result *= half;
    if (quarters & 1) result *= sqrt(half);
  }
  return result;
}

// x^p for x >= 0 as the root of a sum: exponent and significand apart, so that the logarithm's error does not grow with the
// exponent. Short code, as a small kernel is bound by instruction fetch: powf takes longer than the rest of it.
__device__ __forceinline__ float power_of_sum(float x, float p) {
  const int bits = __float_as_int(x);
  if (bits < 0x00800000 || bits >= 0x7f800000) return power(x, p);  // zero, subnormal, infinite or NaN
  const float significand = __int_as_float((bits & 0x007fffff) | 0x3f800000), exponent = (bits >> 23) - 127;
  const float whole = fminf(rintf(exponent * p), 127.0f), rest = fmaf(exponent, p, -whole);  // 2^128 is infinite
  float logarithm, result, scale;
  asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(significand));
  logarithm = fmaf(logarithm, p, rest);
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(logarithm));
  asm("ex2.approx.f32 %0, %1;" : "=f"(scale) : "f"(whole));
  return result * scale;
}
__device__ __forceinline__ double power_of_sum(double x, double p) { return power(x, p); }

template <typename A, int MODE>
struct Accumulator {
  using type = A;
};
template <typename A>
struct Accumulator<A, COUNT> {
  using type = unsigned long long;  // exact beyond 2^24
};

template <typename T, int MODE>
struct Norm {
  using Input = T;
  using Output = T;
  using A = Wide<T>;
  using Acc = typename Accumulator<A, MODE>::type;
  static constexpr bool TWO = false;
  A p, inverse;  // the order and its reciprocal

  static __device__ __forceinline__ A infinity() {  // neutral for |x|^p at p < 0, and for a minimum
    return static_cast<A>(__int_as_float(0x7f800000));
  }
  __device__ __forceinline__ T neutral() const {
    return narrow<T>(MODE == SMALLEST || (MODE == POWER && p < A(0)) ? infinity() : A(0));
  }
  __device__ __forceinline__ Acc identity() const { return MODE == SMALLEST ? Acc(infinity()) : Acc(0); }
  __device__ __forceinline__ Acc take(Acc sum, T element, T) const {
    const A x = magnitude(widen(element));
    if constexpr (MODE == COUNT) return sum + (x != A(0));
    if constexpr (MODE == ABS) return sum + x;
    if constexpr (MODE == SQUARE) return sum + x * x;
    if constexpr (MODE == CUBE) return sum + x * x * x;
    if constexpr (MODE == ROOT_3) return sum + x * normal_root(x);
    if constexpr (MODE == ROOT_5) return sum + x * x * normal_root(x);
    if constexpr (MODE == POWER) return sum + power(x, p);
    return merge(sum, static_cast<Acc>(x));
  }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const {
    if constexpr (MODE == LARGEST || MODE == SMALLEST) return outermost<MODE == SMALLEST>(a, b);
    return a + b;
  }
  __device__ __forceinline__ T finish(Acc sum) const {
    if constexpr (MODE == COUNT || MODE == ABS || MODE == LARGEST || MODE == SMALLEST) return narrow<T>(static_cast<A>(sum));
    if constexpr (MODE == SQUARE) return narrow<T>(root(static_cast<A>(sum)));
    if constexpr (sizeof(T) == 2) return narrow<T>(power(static_cast<A>(sum), inverse));
    return narrow<T>(power_of_sum(static_cast<A>(sum), inverse));
  }
};
