// Operands that walk over one common shape of up to six merged axes, as ops/_core/broadcast.py lays it out.
#pragma once
#include "divide.cuh"

constexpr int AXES = 6;

struct Axes {  // lengths from the innermost outwards: `inner` of them, and the outermost, which needs none
  int inner;
  Divisor length[AXES];
};

struct Strides {  // in elements, innermost first, 0 where the operand is repeated
  long long at[AXES];
};

// The place of flat element `index` of the common shape in an operand.
__device__ __forceinline__ long long place(unsigned int index, const Axes& axes, const Strides& strides) {
  long long at = 0;
#pragma unroll
  for (int axis = 0; axis < AXES - 1; ++axis) {
    if (axis == axes.inner) return at + strides.at[axis] * index;
    const unsigned int outer = quotient(index, axes.length[axis]);
    at += strides.at[axis] * remainder(index, outer, axes.length[axis]);
    index = outer;
  }
  return at + strides.at[AXES - 1] * index;
}
