// conv_data_grad for small groups: fused multiply-adds from a tile of dy in shared memory, no tensor cores.
//
// direct: a thread block computes a tile of pixels for some groups of channels.
// Layout   dy, filter, addend, dx in either data format        Grid   tiles x depth x group blocks x images
// Needs    Plan as ops/conv_data_grad/cuda_direct.py makes it   Block  up to 256 threads: group tiles x rows x columns
// Why      a tensor-core product has at least 16 rows and 16 products; a depthwise convolution would waste 15 of 16
//
// The tile of dy is stored in accumulator precision, upsampled: a stride inserts zeros between its pixels and the padding
// surrounds it with zeros, so that every tap reads one pixel. A thread computes CHANNELS channels of PIXELS pixels, whose
// distance equals that of vertical taps, so that PIXELS + TAPS - 1 loads serve PIXELS * TAPS multiply-adds. A zero in the
// tile times a non-finite filter value is NaN.

#include "divide.cuh"
#include "vector.cuh"

constexpr int AXES = 3;        // depth, height, width
constexpr int THREADS = 256;
constexpr int BATCH = 8;       // loads in flight per thread for single elements: latency bounds a tile

DEFINE_Plan;  // of cuda_direct.py

// Tile of dx that a thread block computes.
struct Block {
  int image, depth, row, column, group, groups;  // first pixel; first group and number of groups

  __device__ __forceinline__ explicit Block(const Plan& plan) {
    int rest = blockIdx.x;
    const auto next = [&](int length) {
      const int whole = rest / length, inner = rest - whole * length;
      rest = whole;
      return inner;
    };
    int tile, group_block;
    if (plan.last) {  // thread blocks that share cache lines run side by side
      group_block = next(plan.group_blocks);
      tile = next(plan.tiles);
      depth = next(plan.full[0]);
    } else {
      tile = next(plan.tiles);
      depth = next(plan.full[0]);
      group_block = next(plan.group_blocks);
    }
    image = rest;
    row = tile / plan.tiles_across * plan.tile_rows;
    column = tile % plan.tiles_across * plan.tile_columns;
    group = group_block * plan.block_groups;
    groups = min(plan.block_groups, plan.groups - group);
  }
};

// Index along an axis of dy of an upsampled position, -1 for an inserted zero. UNIT: the strides are 1.
template <bool UNIT>
__device__ __forceinline__ int source(const Plan& plan, int axis, int at) {
  if (UNIT) return static_cast<unsigned int>(at) < static_cast<unsigned int>(plan.out[axis]) ? at : -1;
  if (at < 0) return -1;
  const int whole = quotient(at, plan.stride[axis]);
  return whole < plan.out[axis] && remainder(at, whole, plan.stride[axis]) == 0 ? whole : -1;
}

// First pixel of the upsampled dy in the tile along height or width.
__device__ __forceinline__ int origin(const Plan& plan, int axis, int first) {
  return first + plan.padding[axis] - (plan.kernel[axis] - 1) * plan.dilation[axis];
}

// Loads the tile of dy for one depth slice and `stage_outs` channels of each group. Channels first: `fill_lanes` threads
// load a row, so that most of the index is computed once a row.
template <bool UNIT, typename T>
__device__ __forceinline__ void fill_rows(
    const T* __restrict__ dy, Wide<T>* tile, const Plan& plan, const Block& block, int slice, int first_out) {
  const int count = plan.rows * plan.block_groups * plan.stage_outs, lanes = plan.fill_lanes;
  const int lane = threadIdx.x & (lanes - 1), step = blockDim.x / lanes;
  const int top = origin(plan, 1, block.row), left = origin(plan, 2, block.column);
  for (int index = threadIdx.x / lanes; index < count; index += step) {
    const int channel = quotient(index, plan.tile_rows_by), row = remainder(index, channel, plan.tile_rows_by);
    const int out = quotient(channel, plan.block_groups_by), group = remainder(channel, out, plan.block_groups_by);
    const int h = source<UNIT>(plan, 1, top + row);
    const bool exists = h >= 0 && group < block.groups && first_out + out < plan.group_outs;
    const long long plane = static_cast<long long>(block.image) * plan.outs +
                            (block.group + group) * plan.group_outs + first_out + out;
    const T* const from = dy + ((plane * plan.out[0] + slice) * plan.out[1] + h) * plan.out[2];
    Wide<T>* const to = tile + index * plan.columns;
    for (int first = lane; first < plan.columns; first += lanes * BATCH) {
      T values[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int w = exists ? source<UNIT>(plan, 2, left + first + i * lanes) : -1;
        values[i] = w >= 0 ? from[w] : T(0.0f);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        if (first + i * lanes < plan.columns) to[first + i * lanes] = widen(values[i]);
      }
    }
  }
}

// Loads the tile of dy for channels last: V neighbouring channels of a pixel are one load.
template <int V, bool UNIT, typename T>
__device__ __forceinline__ void fill_pixels(
    const T* __restrict__ dy, Wide<T>* tile, const Plan& plan, const Block& block, int slice, int first_out) {
  using A = Wide<T>;
  constexpr int IN_FLIGHT = V > 1 ? BATCH / 4 : BATCH / 2;
  const int count = plan.rows * plan.columns * plan.vectors.value;
  const int top = origin(plan, 1, block.row), left = origin(plan, 2, block.column);
  const long long depth = static_cast<long long>(block.image) * plan.out[0] + slice;
  for (int begin = threadIdx.x; begin < count; begin += blockDim.x * IN_FLIGHT) {
    Vector<T, V> vectors[IN_FLIGHT];
    int pixels[IN_FLIGHT], channels[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      const int index = begin + i * blockDim.x;
      const int pixel = quotient(index, plan.vectors), channel = remainder(index, pixel, plan.vectors) * V;
      const int row = quotient(pixel, plan.tile_columns_by), column = remainder(pixel, row, plan.tile_columns_by);
      const int h = source<UNIT>(plan, 1, top + row), w = source<UNIT>(plan, 2, left + column);
      const int group = quotient(channel, plan.stage_outs_by), out = remainder(channel, group, plan.stage_outs_by);
      const bool exists = group < block.groups && first_out + out < plan.group_outs;
      pixels[i] = pixel;
      channels[i] = channel;
      vectors[i] = {};
      if (index >= count || h < 0 || w < 0 || !exists) continue;
      const long long at = (depth * plan.out[1] + h) * plan.out[2] + w;
      vectors[i] = load<T, V>(dy + at * plan.outs + (block.group + group) * plan.group_outs + first_out + out);
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      if (begin + i * static_cast<int>(blockDim.x) >= count) continue;
      A* const to = tile + pixels[i] * plan.pixel_stride;
      if (V > 1 && plan.stage_outs == 1) {
        constexpr int W = 16 / sizeof(A) < V ? 16 / sizeof(A) : V;
#pragma unroll
        for (int j = 0; j < V; j += W) {
          Vector<A, W> wide;
#pragma unroll
          for (int k = 0; k < W; ++k) wide.at[k] = widen(vectors[i].at[j + k]);
          store<A, W>(to + channels[i] + j, wide);
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int channel = channels[i] + j, group = quotient(channel, plan.stage_outs_by);
        to[remainder(channel, group, plan.stage_outs_by) * plan.block_groups + group] = widen(vectors[i].at[j]);
      }
    }
  }
}

template <bool UNIT, typename T>
__device__ __forceinline__ void fill(
    const T* __restrict__ dy, Wide<T>* tile, const Plan& plan, const Block& block, int slice, int first_out) {
  if (!plan.last) {
    fill_rows<UNIT>(dy, tile, plan, block, slice, first_out);
  } else if (plan.vector == 1) {
    fill_pixels<1, false>(dy, tile, plan, block, slice, first_out);
  } else {
    fill_pixels<16 / sizeof(T), UNIT>(dy, tile, plan, block, slice, first_out);
  }
}

// The filter of one depth tap for `stage_outs` channels of dy: [out][column tap][row tap, reversed][channel].
template <int CHANNELS, typename T>
struct Weights {
  const T* filter;
  const Plan& plan;
  const Block& block;
  int depth_tap, first_out;

  __device__ __forceinline__ int count() const {
    return plan.stage_outs * plan.taps.value * plan.sub_channels.value;
  }

  __device__ __forceinline__ Wide<T> at(int index) const {
    const int rest = quotient(index, plan.sub_channels), sub = remainder(index, rest, plan.sub_channels);
    const int out = quotient(rest, plan.taps), within = remainder(rest, out, plan.taps);
    const int column_tap = quotient(within, plan.tap_rows);
    const int row_tap = plan.kernel[1] - 1 - static_cast<int>(remainder(within, column_tap, plan.tap_rows));
    const int group = quotient(sub / CHANNELS, plan.group_tiles);
    const int channel = remainder(sub / CHANNELS, group, plan.group_tiles) * CHANNELS + sub % CHANNELS;
    const bool exists = index < count() && group < block.groups && channel < plan.per_group;
    if (!exists || first_out + out >= plan.group_outs) return 0;
    const long long row = static_cast<long long>(block.group + group) * plan.group_outs + first_out + out;
    const int taps = plan.kernel[0] * plan.kernel[1] * plan.kernel[2];
    const int tap = (depth_tap * plan.kernel[1] + row_tap) * plan.kernel[2] + column_tap;
    return widen(filter[plan.last ? (row * taps + tap) * plan.per_group + channel
                                  : (row * plan.per_group + channel) * taps + tap]);
  }
};

// Adds the products of one stage. from: the thread's first pixel in the tile. weights: of its channels.
template <int TAPS, int CHANNELS, int PIXELS, typename A>
__device__ __forceinline__ void accumulate(
    A (&sum)[CHANNELS][PIXELS], const A* from, const A* weights, const Plan& plan, int outs) {
  const int step = plan.row_step * plan.row_stride + plan.column_step * plan.pixel_stride;
  const int tap_step = plan.dilation[1] * plan.row_stride, column_step = plan.dilation[2] * plan.pixel_stride;
  const int sub_channels = plan.sub_channels.value;
  for (int out = 0; out < outs; ++out, from += plan.block_groups * plan.channel_stride) {
    const A* column = from + (plan.kernel[2] - 1) * column_step;
    for (int column_tap = 0; column_tap < plan.kernel[2]; ++column_tap, column -= column_step) {
      const A* at = column;
#pragma unroll 1
      for (int row_tap = 0; row_tap < plan.kernel[1]; row_tap += TAPS, at += TAPS * tap_step) {
        A window[PIXELS + TAPS - 1];
#pragma unroll
        for (int i = 0; i < PIXELS + TAPS - 1; ++i) window[i] = at[i * step];
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap, weights += sub_channels) {
          A weight[CHANNELS];
#pragma unroll
          for (int c = 0; c < CHANNELS; c += CHANNELS < 4 ? 1 : 16 / sizeof(A)) {
            constexpr int W = CHANNELS < 4 ? 1 : 16 / sizeof(A);
            const Vector<A, W> vector = load<A, W>(weights + c);
#pragma unroll
            for (int k = 0; k < W; ++k) weight[c + k] = vector.at[k];
          }
#pragma unroll
          for (int pixel = 0; pixel < PIXELS; ++pixel) {
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) sum[c][pixel] += window[pixel + tap] * weight[c];
          }
        }
      }
    }
  }
}

// Adds the addend and stores a thread's results.
template <int CHANNELS, int PIXELS, typename T>
__device__ __forceinline__ void store_results(
    const Wide<T> (&sum)[CHANNELS][PIXELS], const T* __restrict__ addend, T* __restrict__ dx, const Plan& plan,
    const Block& block, int row, int column, int group, int channel) {
  const long long area = static_cast<long long>(plan.full[1]) * plan.full[2];
  const long long first = (block.group + group) * plan.per_group + channel, image = block.image;
  const long long pixel_stride = plan.last ? plan.channels : 1, channel_stride = plan.last ? 1 : plan.full[0] * area;
  const long long origin = plan.last ? (image * plan.full[0] + block.depth) * area * plan.channels + first
                                     : ((image * plan.channels + first) * plan.full[0] + block.depth) * area;
  const int h = block.row + row, w = block.column + column;
  const long long step = (static_cast<long long>(plan.row_step) * plan.full[2] + plan.column_step) * pixel_stride;
  const int rows = plan.full[1] - h, columns = plan.full[2] - w;  // left of the image
  long long at = origin + (static_cast<long long>(h) * plan.full[2] + w) * pixel_stride;
#pragma unroll
  for (int pixel = 0; pixel < PIXELS; ++pixel, at += step) {
    if (pixel * plan.row_step >= rows || pixel * plan.column_step >= columns) break;
    if constexpr (CHANNELS > 1 && CHANNELS * sizeof(T) <= 16) {
      if (plan.vector_store) {
        Vector<T, CHANNELS> vector = {};
        if (addend != nullptr) vector = load<T, CHANNELS>(addend + at);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
          vector.at[c] = narrow<T>(addend != nullptr ? sum[c][pixel] + widen(vector.at[c]) : sum[c][pixel]);
        }
        store<T, CHANNELS>(dx + at, vector);
        continue;
      }
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
      if (channel + c >= plan.per_group) continue;
      const long long to = at + c * channel_stride;
      dx[to] = narrow<T>(addend != nullptr ? sum[c][pixel] + widen(addend[to]) : sum[c][pixel]);
    }
  }
}

template <typename T, int TAPS, int CHANNELS, int PIXELS>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 8 || CHANNELS > 1 ? 2 : 3) direct(
    const T* __restrict__ dy, const T* __restrict__ filter, const T* __restrict__ addend, T* __restrict__ dx,
    const __grid_constant__ Plan plan) {
  using A = Wide<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  A *const tile = reinterpret_cast<A*>(memory), *const weights = tile + plan.weights;
  const Block block(plan);
  const int subs = plan.block_groups * plan.group_tiles.value, lanes = plan.column_lanes;
  int rest = threadIdx.x, sub, row_lane, column_lane;
  if (plan.last) {
    sub = rest % subs, rest /= subs;
    column_lane = rest % lanes, row_lane = rest / lanes;
  } else {
    column_lane = rest % lanes, rest /= lanes;
    row_lane = rest % plan.row_lanes, sub = rest / plan.row_lanes;
  }
  const bool active = plan.last ? row_lane < plan.row_lanes : sub < subs;
  const int group = quotient(sub, plan.group_tiles), channel = remainder(sub, group, plan.group_tiles) * CHANNELS;
  const int row_step = max(plan.row_step, 1);
  const int row = row_lane / row_step * row_step * (plan.row_step > 0 ? PIXELS : 1) + row_lane % row_step;
  const A* const from = tile + group * plan.channel_stride + row * plan.row_stride + column_lane * plan.pixel_stride;
  A sum[CHANNELS][PIXELS] = {};
  for (int depth_tap = 0; depth_tap < plan.kernel[0]; ++depth_tap) {
    const int slice = source<false>(plan, 0, block.depth + plan.padding[0] - depth_tap * plan.dilation[0]);
    if (slice < 0) continue;
    for (int first_out = 0; first_out < plan.group_outs; first_out += plan.stage_outs) {
      __syncthreads();
      const Weights<CHANNELS, T> stage = {filter, plan, block, depth_tap, first_out};
      const A first_weight = stage.at(threadIdx.x);  // in flight while the tile is loaded
      if (plan.unit) {
        fill<true>(dy, tile, plan, block, slice, first_out);
      } else {
        fill<false>(dy, tile, plan, block, slice, first_out);
      }
      if (threadIdx.x < stage.count()) weights[threadIdx.x] = first_weight;
      for (int i = threadIdx.x + blockDim.x; i < stage.count(); i += blockDim.x) weights[i] = stage.at(i);
      __syncthreads();
      const int outs = min(plan.stage_outs, plan.group_outs - first_out);
      if (active) accumulate<TAPS>(sum, from, weights + sub * CHANNELS, plan, outs);
    }
  }
  if (active && group < block.groups) {
    store_results(sum, addend, dx, plan, block, row, column_lane, group, channel);
  }
}
