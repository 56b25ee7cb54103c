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

// Packs lines of `2^row_bits` adjacent rows of the product for one pass, and writes the rows' inverse scales. Neighbouring
// threads have neighbouring rows, which are adjacent in memory if channels are last. float32: all lines of the rows, whose
// largest value scales them; else one line per thread.
template <typename T>
__device__ __forceinline__ void pack_rows(
    const T* __restrict__ filter, uint4* __restrict__ packed, float* __restrict__ row_scales, const Plan& plan,
    int tile_rows, int block) {
  constexpr bool SCALED = sizeof(T) == 4;
  __shared__ int entries[MOST_TAPS];
  __shared__ float largest[PREPARE_THREADS];
  const auto next = [&](const Divisor& length) {
    const int whole = quotient(block, length), inner = remainder(block, whole, length);
    block = whole;
    return inner;
  };
  const int line_block = next(plan.line_blocks), inner_block = next(plan.row_blocks), which = next(plan.row_classes);
  const int group = block / plan.passes, part = block, each = plan.per_group.value;
  const Pass& pass = plan.pass[part - group * plan.passes];
  const int row_of = threadIdx.x & ((1 << plan.row_bits) - 1), lane = threadIdx.x >> plan.row_bits;
  const int inner = (inner_block << plan.row_bits) + row_of, row = which * each + inner;
  const bool valid = inner < each;
  int residue[AXES];
  residues(residue, plan, pass, which);
  for (int tap = threadIdx.x; tap < pass.taps; tap += PREPARE_THREADS) {
    int to[AXES];
    reach(to, plan, pass, tap);
    entries[tap] = entry(plan, residue, to);
  }
  __syncthreads();
  const int kernel = plan.kernel[0] * plan.kernel[1] * plan.kernel[2], lines = plan.chunks * pass.taps;
  const auto read = [&](T(&values)[CHANNELS<T>], int line) {
    const int chunk = line / pass.taps, at = entries[line - chunk * pass.taps];
#pragma unroll
    for (int j = 0; j < CHANNELS<T>; ++j) {
      const int out = chunk * CHANNELS<T> + j;
      const long long first = static_cast<long long>(group) * plan.group_outs + out;
      const long long from = plan.last ? (first * kernel + at) * each + inner : (first * each + inner) * kernel + at;
      values[j] = valid && at >= 0 && out < plan.group_outs ? filter[from] : T(0.0f);
    }
  };
  const int lanes = PREPARE_THREADS >> plan.row_bits, step = SCALED ? lanes : lines;
  float factor = 1;
  if constexpr (SCALED) {
    float most = 0;
    for (int line = lane; line < lines; line += step) {
      T values[CHANNELS<T>];
      read(values, line);
#pragma unroll
      for (int j = 0; j < CHANNELS<T>; ++j) most = fmaxf(most, fabsf(values[j]));
    }
    largest[threadIdx.x] = most;
    for (int half = PREPARE_THREADS / 2; half >> plan.row_bits > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + half]);
    }
    __syncthreads();
    const int top = exponent(largest[row_of]);
    factor = power(254 + TOP - top);
    if (lane == 0 && valid) row_scales[static_cast<long long>(part) * plan.rows + row] = power(min(top, 254));
  }
  if (!valid) return;
  const int rows = plan.row_tiles * tile_rows;
  for (int line = line_block * lanes + lane; line < lines; line += step) {
    T values[CHANNELS<T>];
    read(values, line);
    const long long all = static_cast<long long>(group) * plan.chunks * pass.taps + line;
    put(packed + (pass.filter + all * rows + row) * (LINE / 16), swizzle(row), values, factor);
  }
}

// prepare: blocks repack dy and the filter.
// Layout   dy, filter in either data format      Grid  blocks of filter rows + of lines      Block  PREPARE_THREADS
// Writes   lines (groups, chunks, lines) and their inverse scales, packed filter and its rows' inverse scales
template <typename T>
__global__ void __launch_bounds__(PREPARE_THREADS) prepare(
    const T* __restrict__ dy, const T* __restrict__ filter, uint4* __restrict__ lines, float* __restrict__ scales,
    uint4* __restrict__ packed, float* __restrict__ row_scales, int filter_blocks, int tile_rows,
    const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_blocks) {
    pack_rows(filter, packed, row_scales, plan, tile_rows, block);
  } else {
    store_lines(dy, lines, scales, plan, block - filter_blocks);
  }
}
