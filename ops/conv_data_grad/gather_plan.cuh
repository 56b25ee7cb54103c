// Plan of a gathering convolution: passes over residue classes, taps and their distances.
#pragma once
#include "divide.cuh"

constexpr int AXES = 3, MOST_PASSES = 16, MOST_TAPS = 512;
constexpr int LINE = 64;             // bytes of a line: two halves of 16 floats each, or 32 elements of 16 bits
constexpr int PREPARE_THREADS = 128;
constexpr int RING = 3;              // stages of the filter in shared memory

struct Pass {      // pixels of dx with common taps
  int columns;     // pixels, of all images
  int unit;        // pixels that are divided into tiles: of an image, or all
  int tiles;       // tiles of columns
  int filter;      // offset of its filter, in lines
  int taps;
  int count[AXES], first[AXES];  // taps of an axis; reach of the first one
  int residue[AXES];             // residue of the first class of its rows
  Divisor unit_tiles, size[AXES];
};

struct Plan {
  int images, channels, outs;       // channels of dx and of dy
  int group_outs, rows, row_tiles;  // of one group: channels of dy, rows of the product
  int chunks, lines;                // chunks of channels; lines of a chunk
  int patch, patches;              // lines of a patch, patches in shared memory
  int stage_taps, share, splits;   // taps of a stage; chunks of a split
  int passes, merged, last;         // merged: rows are classes of channels; last: channels last
  int full[AXES], out[AXES], pitch[AXES], margin[AXES], kernel[AXES], padding[AXES], dilation[AXES], stride[AXES];
  int step[AXES];                   // distance between taps, in pixels of dy
  Divisor per_group, padded[AXES], classes[AXES];
  Pass pass[MOST_PASSES];
};

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
