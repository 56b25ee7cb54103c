// Plan of a gathering convolution: passes over residue classes, taps and their distances.
#pragma once
#include "cluster.cuh"
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

// Position of a pixel of a pass in dx and in dy's lines.
struct Pixel {
  int image, at[AXES];  // coordinates within its class

  __device__ __forceinline__ Pixel(const Pass& pass, int column) {
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      const int whole = quotient(column, pass.size[axis]);
      at[axis] = remainder(column, whole, pass.size[axis]);
      column = whole;
    }
    image = column;
  }
  __device__ __forceinline__ int line(const Plan& plan) const {
    int line = image;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) line = line * plan.pitch[axis] + at[axis] + plan.margin[axis];
    return line;
  }
  // Offset among the pixels of dx, or -1 beyond the class.
  __device__ __forceinline__ int dx_offset(const Plan& plan, const int (&residue)[AXES]) const {
    int dx_offset = 0;
#pragma unroll
    for (int axis = 0; axis < AXES; ++axis) {
      const int whole = at[axis] * plan.stride[axis] + residue[axis];
      if (whole >= plan.full[axis]) return -1;
      dx_offset = dx_offset * plan.full[axis] + whole;
    }
    return dx_offset;
  }
};

// Requests what a tile's threads add to their results, channels last: `rows` of channels of `columns` pixels.
template <int THREADS, typename T>
__device__ __forceinline__ void request_addend(
    const T* addend, const Plan& plan, const Pass& pass, int first_row, int rows, int first, int columns) {
  constexpr int NEAR = 128 / sizeof(T);  // elements of a line of the cache
  const long long area = static_cast<long long>(plan.full[0]) * plan.full[1] * plan.full[2];
  const int across = (rows + NEAR - 1) / NEAR;
#pragma unroll 1
  for (int n = threadIdx.x; n < across * columns; n += THREADS) {
    const int j = n / across, row = first_row + (n - j * across) * NEAR;
    if (row >= plan.rows) continue;
    int residue[AXES];
    const int part = quotient(row, plan.per_group), channel = remainder(row, part, plan.per_group);
    residues(residue, plan, pass, part);
    const Pixel pixel(pass, first + j);
    const int dx_offset = pixel.dx_offset(plan, residue);
    if (dx_offset < 0) continue;
    const int all = blockIdx.y * plan.per_group.value + channel;
    prefetch_to_l2(addend + (pixel.image * area + dx_offset) * plan.channels + all);
  }
}
