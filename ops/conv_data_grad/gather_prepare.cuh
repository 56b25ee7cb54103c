// Preparation of a gathering convolution: dy as lines, and the filter packed by stages.
#pragma once
#include "gather_plan.cuh"
#include "halves.cuh"
#include "vector.cuh"

// Stores a line's values, scaled and split into halves if they are floats.
__device__ __forceinline__ void put(uint4* line, int swizzled, const float (&values)[16], float factor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned int high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 8 * half + 2 * i;
      split_halves(high[i], low[i], values[at] * factor, values[at + 1] * factor);
    }
    line[half ^ swizzled] = make_uint4(high[0], high[1], high[2], high[3]);
    line[(half + 2) ^ swizzled] = make_uint4(low[0], low[1], low[2], low[3]);
  }
}

template <typename T>
__device__ __forceinline__ void put(uint4* line, int swizzled, const T (&values)[32], float) {
#pragma unroll
  for (int piece = 0; piece < 4; ++piece) {
    Vector<T, 8> vector;
#pragma unroll
    for (int i = 0; i < 8; ++i) vector.at[i] = values[8 * piece + i];
    line[piece ^ swizzled] = *reinterpret_cast<const uint4*>(&vector);
  }
}

// Stores one line per thread: a pixel of dy or of its margins.
template <typename T>
__device__ __forceinline__ void store_lines(
    const T* __restrict__ dy, uint4* __restrict__ lines, float* __restrict__ scales, const Plan& plan, int block) {
  __shared__ uint4 tile[PREPARE_THREADS * (LINE / 16)];
  const int blocks = plan.lines / PREPARE_THREADS, part = block / blocks;
  const int group = part / plan.chunks, first = (part - group * plan.chunks) * CHANNELS<T>;
  const int line = (block - part * blocks) * PREPARE_THREADS + threadIdx.x;
  int rest = line, pixel = 0, area = 1;
  bool valid = true;
#pragma unroll
  for (int axis = AXES - 1; axis >= 0; --axis) {
    const int whole = quotient(rest, plan.padded[axis]);
    const int at = static_cast<int>(remainder(rest, whole, plan.padded[axis])) - plan.margin[axis];
    valid = valid && at >= 0;
    pixel += at * area;
    area *= plan.out[axis];
    rest = whole;
  }
  valid = valid && rest < plan.images;
  const int channel = group * plan.group_outs + first;
  const long long start = plan.last ? (static_cast<long long>(rest) * area + pixel) * plan.outs + channel
                                    : (static_cast<long long>(rest) * plan.outs + channel) * area + pixel;
  const long long stride = plan.last ? 1 : area;
  T values[CHANNELS<T>];
#pragma unroll
  for (int i = 0; i < CHANNELS<T>; ++i) {
    values[i] = valid && first + i < plan.group_outs ? dy[start + i * stride] : T(0.0f);
  }
  float factor = 1;
  const long long at = static_cast<long long>(part) * plan.lines + line;
  if constexpr (sizeof(T) == 4) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < CHANNELS<T>; ++i) largest = fmaxf(largest, fabsf(values[i]));
    const int top = exponent(largest);
    factor = power(254 + TOP - top);
    scales[at] = power(top) * power(127 - 2 * TOP);  // may be subnormal
  }
  put(tile + threadIdx.x * (LINE / 16), swizzle(line), values, factor);
  __syncwarp();
  const int lane = threadIdx.x % 32, warp = threadIdx.x - lane;
#pragma unroll
  for (int i = 0; i < LINE / 16; ++i) {
    lines[(at - lane) * (LINE / 16) + 32 * i + lane] = tile[warp * (LINE / 16) + 32 * i + lane];
  }
}

// Packs one row of the product for one pass: its lines for all chunks and taps, and its inverse scale.
template <typename T>
__device__ __forceinline__ void pack_row(
    const T* __restrict__ filter, uint4* __restrict__ packed, float* __restrict__ row_scales, const Plan& plan,
    int tile_rows, int block) {
  __shared__ int entries[MOST_TAPS];
  __shared__ float warps[PREPARE_THREADS / 32];
  const int part = block / plan.rows, row = block - part * plan.rows;
  const int group = part / plan.passes;
  const Pass& pass = plan.pass[part - group * plan.passes];
  const int which = quotient(row, plan.per_group), inner = remainder(row, which, plan.per_group);
  int residue[AXES];
  residues(residue, plan, pass, which);
  for (int tap = threadIdx.x; tap < pass.taps; tap += PREPARE_THREADS) {
    int to[AXES];
    reach(to, plan, pass, tap);
    entries[tap] = entry(plan, residue, to);
  }
  __syncthreads();
  const int each = plan.per_group.value, kernel = plan.kernel[0] * plan.kernel[1] * plan.kernel[2];
  const auto read = [&](int out, int tap) {
    const int at = entries[tap];
    if (at < 0 || out >= plan.group_outs) return T(0.0f);
    const long long first = static_cast<long long>(group) * plan.group_outs + out;
    return filter[plan.last ? (first * kernel + at) * each + inner : (first * each + inner) * kernel + at];
  };
  float factor = 1;
  if constexpr (sizeof(T) == 4) {
    float most = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < plan.group_outs * pass.taps; i += PREPARE_THREADS) {
      const int out = i / pass.taps;
      most = fmaxf(most, fabsf(read(out, i - out * pass.taps)));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < PREPARE_THREADS / 32; ++warp) most = fmaxf(most, warps[warp]);
    const int top = exponent(most);
    factor = power(254 + TOP - top);
    if (threadIdx.x == 0) row_scales[block] = power(min(top, 254));
  }
  const int rows = plan.row_tiles * tile_rows;
  for (int i = threadIdx.x; i < plan.chunks * pass.taps; i += PREPARE_THREADS) {  // neighbouring threads, neighbouring taps
    const int chunk = i / pass.taps, tap = i - chunk * pass.taps;
    T values[CHANNELS<T>];
#pragma unroll
    for (int j = 0; j < CHANNELS<T>; ++j) values[j] = read(chunk * CHANNELS<T> + j, tap);
    const long long line = pass.filter + (static_cast<long long>(group) * plan.chunks * pass.taps + i) * rows + row;
    put(packed + line * (LINE / 16), swizzle(row), values, factor);
  }
}

// prepare: blocks repack dy and the filter.
// Layout   dy, filter in either data format      Grid  rows of the filter + blocks of lines      Block  PREPARE_THREADS
// Writes   lines (groups, chunks, lines) and their inverse scales, packed filter and its rows' inverse scales
template <typename T>
__global__ void __launch_bounds__(PREPARE_THREADS) prepare(
    const T* __restrict__ dy, const T* __restrict__ filter, uint4* __restrict__ lines, float* __restrict__ scales,
    uint4* __restrict__ packed, float* __restrict__ row_scales, int filter_blocks, int tile_rows,
    const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_blocks) {
    pack_row(filter, packed, row_scales, plan, tile_rows, block);
  } else {
    store_lines(dy, lines, scales, plan, block - filter_blocks);
  }
}
