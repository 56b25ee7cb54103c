// Plan of a gathering convolution: passes over residue classes, taps and their distances.
#pragma once
#include "divide.cuh"

constexpr int AXES = 3, MOST_PASSES = 16, MOST_TAPS = 512;
constexpr int LINE = 64;             // bytes of a line: two halves of 16 floats each, or 32 elements of 16 bits
constexpr int PREPARE_THREADS = 128;
constexpr int RING = 3;              // stages of the filter in shared memory

DEFINE_Pass;  // of gather_layout.py
DEFINE_Plan;

template <typename T>
constexpr int CHANNELS = sizeof(T) == 4 ? 16 : 32;  // channels of a line

// Swizzle of a line's four 16-byte pieces: eight consecutive lines use different banks.
__device__ __forceinline__ int swizzle(int line) { return line / 2 % 4; }

// Reach of tap `tap` of a pass along each axis.
__device__ __forceinline__ void reach(int (&to)[AXES], const Plan& plan, const Pass& pass, int tap) {
#pragma unroll
  for (int axis = AXES - 1; axis >= 0; --axis) {
    const int whole = tap / pass.count[axis];
    to[axis] = pass.first[axis] - (tap - whole * pass.count[axis]) * plan.step[axis];
    tap = whole;
  }
}

__device__ __forceinline__ int distance(const Plan& plan, const int (&to)[AXES]) {
  return (to[0] * plan.pitch[1] + to[1]) * plan.pitch[2] + to[2];
}

// Distance of the last tap, whose reach is the smallest.
__device__ __forceinline__ int least_distance(const Plan& plan, const Pass& pass) {
  int to[AXES];
  reach(to, plan, pass, pass.taps - 1);
  return distance(plan, to);
}

// Residues of the class of a row.
__device__ __forceinline__ void residues(int (&to)[AXES], const Plan& plan, const Pass& pass, int which) {
#pragma unroll
  for (int axis = AXES - 1; axis >= 0; --axis) {
    const int whole = quotient(which, plan.classes[axis]);
    to[axis] = pass.residue[axis] + remainder(which, whole, plan.classes[axis]);
    which = whole;
  }
}

// Entry of the filter for a class and a tap's reach, or -1.
__device__ __forceinline__ int entry(
    const Plan& plan, const int (&residue)[AXES], const int (&to)[AXES]) {
  int found = 0;
#pragma unroll
  for (int axis = 0; axis < AXES; ++axis) {
    const int moved = residue[axis] + plan.padding[axis] - plan.stride[axis] * to[axis];
    const int at = moved / plan.dilation[axis];
    if (moved < 0 || at >= plan.kernel[axis] || at * plan.dilation[axis] != moved) return -1;
    found = found * plan.kernel[axis] + at;
  }
  return found;
}
