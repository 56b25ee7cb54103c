// Split of float32 into two halves of 11 bits each, after scaling by a power of two so that the largest of some numbers
// is in [2^TOP, 2^(TOP + 1)).
#pragma once
#include "vector.cuh"

constexpr int TOP = 14;     // exponent to which the largest number is scaled
constexpr int LEAST = TOP;  // biased exponent of the largest scale, 2^127

__device__ __forceinline__ float power(int biased) { return __uint_as_float(static_cast<unsigned int>(biased) << 23); }

// Biased exponent of the largest of some numbers, from their largest magnitude.
__device__ __forceinline__ int exponent(float largest) {
  return max(static_cast<int>(__float_as_uint(largest) >> 23), LEAST);
}

__device__ __forceinline__ unsigned int bits(__half2 pair) { return *reinterpret_cast<const unsigned int*>(&pair); }

// Splits two scaled numbers into halves and remainders.
__device__ __forceinline__ void split_halves(unsigned int& high, unsigned int& low, float first, float second) {
  const __half2 top = __floats2half2_rn(first, second);
  high = bits(top);
  low = bits(__floats2half2_rn(first - __low2float(top), second - __high2float(top)));
}
