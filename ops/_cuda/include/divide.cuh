// Division of 31-bit numbers by a divisor known on the host: one multiplication and a shift.
#pragma once

DEFINE_Divisor;  // of ops/_cuda/struct.py

__device__ __forceinline__ unsigned int quotient(unsigned int number, const Divisor& by) {
  return (__umulhi(number, by.multiplier) + number) >> by.shift;
}

__device__ __forceinline__ unsigned int remainder(unsigned int number, unsigned int whole, const Divisor& by) {
  return number - whole * by.value;
}
