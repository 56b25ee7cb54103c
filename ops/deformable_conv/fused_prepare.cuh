// Preparation of the fused deformable convolution: packed filter, transposed x and sample positions.
#pragma once
#include "fused_plan.cuh"
#include "halves.cuh"
#include "lines.cuh"

// Packs one row of the filter into its stages' lines of 128 bytes, swizzled so that eight rows use different banks.
template <typename T, int HALVES>
__device__ __forceinline__ void pack_filter(
    const T* __restrict__ filter, unsigned char* __restrict__ packed, float* __restrict__ scales, const Plan& plan,
    int tile_rows, int padded_row) {
  __shared__ float largest[8];
  const int row_count = plan.row_tiles * tile_rows;
  const int group = padded_row / row_count, row = padded_row - group * row_count;
  const int tile = row / tile_rows, within = row - tile * tile_rows;
  const bool exists = row < plan.rows;
  const int length = plan.group_channels * plan.conv.taps, stages = plan.chunks * plan.conv.taps;
  const T* const from = filter + (static_cast<long long>(group) * plan.rows + row) * length;
  float scale = 1;
  if constexpr (sizeof(T) == 4) {
    float most = 0;
    for (int first = exists ? threadIdx.x : length; first < length; first += 256 * LOADS) {
      float values[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) values[i] = i * 256 < length - first ? from[first + i * 256] : 0.0f;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) most = fmaxf(most, fabsf(values[i]));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < 8; ++warp) most = fmaxf(most, largest[warp]);
    const int top = exponent(most);
    scale = power(254 + TOP - top);
    if (exists && threadIdx.x == 0) scales[group * plan.rows + row] = power(min(top, 254));
  }
  constexpr int PARTS = DEPTH<HALVES> / 8;  // groups of eight channels in a stage
  unsigned char* const to =
      packed + (static_cast<long long>(group * plan.row_tiles + tile) * stages * tile_rows + within) * LINE;
  const bool padded = plan.segment != plan.padded.value;
  for (int i = threadIdx.x; i < stages * PARTS; i += 256) {  // neighbouring threads read neighbouring taps
    const int piece = quotient(i, plan.taps), tap = remainder(i, piece, plan.taps), part = piece % PARTS;
    const int chunk = piece / PARTS, super = quotient(chunk, plan.run);
    const int stage = (super * plan.conv.taps + tap) * plan.span + remainder(chunk, super, plan.run);
    const int first = chunk * DEPTH<HALVES>;
    T values[8];
    if (exists && !padded && first + DEPTH<HALVES> <= plan.depth) {
      const T* const own = from + first * plan.conv.taps + tap;
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = own[channel_of<T, HALVES>(part, j) * plan.conv.taps];
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int stored = first + channel_of<T, HALVES>(part, j);
        const int channel = stored < plan.depth ? given_channel(stored, plan.segment, plan.padded) : -1;
        values[j] = exists && channel >= 0 ? from[channel * plan.conv.taps + tap] : T(0.0f);
      }
    }
    unsigned char* const line = to + static_cast<long long>(stage) * tile_rows * LINE;
    if constexpr (sizeof(T) == 4) {
      unsigned int high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) split_halves(high[j], low[j], values[2 * j] * scale, values[2 * j + 1] * scale);
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = make_uint4(high[0], high[1], high[2], high[3]);
      if (HALVES == 1) continue;
      *reinterpret_cast<uint4*>(line + ((part + 4) ^ within % 8) * 16) = make_uint4(low[0], low[1], low[2], low[3]);
    } else {
      alignas(16) T line_values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) line_values[j] = values[j];
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = *reinterpret_cast<const uint4*>(line_values);
    }
  }
}

template <typename T>
__device__ __forceinline__ void locate(
    const T* __restrict__ offset, const T* __restrict__ mask, SamplePosition* __restrict__ positions, const Plan& plan, int index) {
  const int total = plan.images * plan.conv.pixels.value, area = plan.conv.height * plan.conv.width;
  const int entry = index / total, column = index - entry * total;
  if (entry >= plan.conv.taps * plan.conv.channels / plan.conv.per_group) return;
  const int group = entry / plan.conv.taps, tap = entry - group * plan.conv.taps;
  const int image = quotient(column, plan.conv.pixels);
  const int pixel = pixel_at(plan, remainder(column, image, plan.conv.pixels));
  const Sample<float> sample = find(plan.conv, offset, mask, image, group, tap, pixel);
  int flags = 0, first = 0;
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    if (sample.at[corner] < 0) continue;
    flags |= 1 << corner;
    first = sample.at[corner] - corner / 2 * plan.conv.width - corner % 2;
  }
  positions[index] = {(image * area + first) * 16 + flags, sample.lh, sample.lw, sample.mask};
}

// prepare: blocks pack the filter, transpose x to lines and compute sample positions.
// Layout   x (N, C, H, W), filter, offset, mask      Grid  rows of the filter + pieces of x + 1 + positions / 256
// Block    256       Writes  lines (N, H, W, channels) and a line of zeros, packed filter and its rows' scales,
//                            positions (deformable groups, taps, pixels of all images)
// Why      16-bit types are bound by latency, so that the number of resident blocks is maximized
template <typename T, int HALVES>
__global__ void __launch_bounds__(256, sizeof(T) == 2 ? 6 : 4) prepare(
    const T* __restrict__ x, const T* __restrict__ filter, const T* __restrict__ offset, const T* __restrict__ mask,
    T* __restrict__ lines, T* __restrict__ zeros, unsigned char* __restrict__ packed, float* __restrict__ scales,
    SamplePosition* __restrict__ positions, int filter_rows, int pieces, int tile_rows, const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_rows) {
    pack_filter<T, HALVES>(filter, packed, scales, plan, tile_rows, block);
  } else if (block < filter_rows + pieces) {
    const Lines of = {
        plan.conv.height * plan.conv.width, plan.conv.channels, plan.segment, plan.line_depth, plan.padded};
    to_channels_last(x, lines, static_cast<float*>(nullptr), of, block - filter_rows);
  } else if (block > filter_rows + pieces) {
    locate(offset, mask, positions, plan, (block - filter_rows - pieces - 1) * 256 + threadIdx.x);
  } else {
    for (int i = threadIdx.x; i < plan.line_depth; i += 256) zeros[i] = T(0.0f);
  }
}
