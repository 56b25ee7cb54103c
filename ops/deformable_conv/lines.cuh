// Tensors (N, C, H, W) transposed to lines (N, H, W, channels), so that 16 bytes are channels of one pixel. Channels are
// stored in segments, each padded to a multiple of 16 bytes.
#pragma once
#include "divide.cuh"
#include "vector.cuh"

constexpr int TRANSPOSE_PIXELS = 32, TRANSPOSE_CHANNELS = 64, TRANSPOSE_THREADS = 256;  // tile and threads of a block

DEFINE_Lines;  // of fused_layout.py

// Part of x that a block transposes.
struct Piece {
  int image, pixel, channel;
  __device__ __forceinline__ Piece(const Lines& of, int block) {
    const int across = (of.area + TRANSPOSE_PIXELS - 1) / TRANSPOSE_PIXELS;
    const int along = (of.depth + TRANSPOSE_CHANNELS - 1) / TRANSPOSE_CHANNELS;
    image = block / (across * along);
    const int within = block - image * across * along;
    pixel = within / along * TRANSPOSE_PIXELS;
    channel = within % along * TRANSPOSE_CHANNELS;
  }
};

// Channel of x for a channel as stored; -1 for padding.
__device__ __forceinline__ int given_channel(int channel, int segment, const Divisor& padded) {
  const int whole = quotient(channel, padded), inner = remainder(channel, whole, padded);
  return inner < segment ? whole * segment + inner : -1;
}

// Transposes a piece of x to `lines` and writes as many zeros to `zeros` unless null. Stores are 16 bytes if lines are
// multiples of that. All loads of a thread are in flight at once.
template <typename T>
__device__ __forceinline__ void to_channels_last(
    const T* __restrict__ x, T* __restrict__ lines, float* __restrict__ zeros, const Lines& of, int block) {
  constexpr int V = 16 / sizeof(T), LANES = TRANSPOSE_CHANNELS / V;
  constexpr int ROWS = TRANSPOSE_THREADS / TRANSPOSE_PIXELS, LOADS = TRANSPOSE_CHANNELS / ROWS;
  constexpr int LINES = TRANSPOSE_THREADS / LANES, STORES = TRANSPOSE_PIXELS / LINES;
  __shared__ T tile[TRANSPOSE_CHANNELS][TRANSPOSE_PIXELS + 1];
  const Piece piece(of, block);
  const int row = threadIdx.x / TRANSPOSE_PIXELS, lane = threadIdx.x % TRANSPOSE_PIXELS, pixel = piece.pixel + lane;
  const T* const from = x + static_cast<long long>(piece.image) * of.channels * of.area + pixel;
  const int depth = pixel < of.area ? of.depth : 0;
  T values[LOADS];
  if (of.segment == of.padded.value) {  // no padding
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int channel = piece.channel + row + i * ROWS;
      values[i] = channel < depth ? from[static_cast<long long>(channel) * of.area] : T(0.0f);
    }
  } else {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int stored = piece.channel + row + i * ROWS;
      const int channel = stored < depth ? given_channel(stored, of.segment, of.padded) : -1;
      values[i] = channel >= 0 ? from[static_cast<long long>(channel) * of.area] : T(0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < LOADS; ++i) tile[row + i * ROWS][lane] = values[i];
  __syncthreads();
  const int line = threadIdx.x / LANES, j = threadIdx.x % LANES * V;
  const long long first = static_cast<long long>(piece.image) * of.area + piece.pixel + line;
  const long long at = first * of.depth + piece.channel + j;
#pragma unroll
  for (int i = 0; i < STORES; ++i) {
    const int own = line + i * LINES;
    if (piece.pixel + own >= of.area || piece.channel + j >= of.depth) continue;
    Vector<T, V> vector;
#pragma unroll
    for (int k = 0; k < V; ++k) vector.at[k] = tile[j + k][own];
    const long long to = at + static_cast<long long>(i) * LINES * of.depth;
    if (of.depth % V == 0) {
      store<T, V>(lines + to, vector);
    } else {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        if (piece.channel + j + k < of.depth) lines[to + k] = vector.at[k];
      }
    }
    if (zeros == nullptr) continue;
#pragma unroll
    for (int k = 0; k < V; k += 4) store<float, 4>(zeros + to + k, Vector<float, 4>{});
  }
}

// Transposes a piece of lines back to x.
template <typename T>
__device__ __forceinline__ void to_channels_first(const float* __restrict__ lines, T* __restrict__ x, const Lines& of, int block) {
  constexpr int LANES = TRANSPOSE_CHANNELS / 4, LINES = TRANSPOSE_THREADS / LANES, LOADS = TRANSPOSE_PIXELS / LINES;
  constexpr int ROWS = TRANSPOSE_THREADS / TRANSPOSE_PIXELS, STORES = TRANSPOSE_CHANNELS / ROWS;
  __shared__ float tile[TRANSPOSE_CHANNELS][TRANSPOSE_PIXELS + 1];
  const Piece piece(of, block);
  const int line = threadIdx.x / LANES, j = threadIdx.x % LANES * 4;
  const long long first = static_cast<long long>(piece.image) * of.area + piece.pixel + line;
  Vector<float, 4> vectors[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const bool valid = piece.pixel + line + i * LINES < of.area && piece.channel + j < of.depth;
    vectors[i] = valid ? load<float, 4>(lines + (first + i * LINES) * of.depth + piece.channel + j) : Vector<float, 4>{};
  }
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) tile[j + k][line + i * LINES] = vectors[i].at[k];
  }
  __syncthreads();
  const int row = threadIdx.x / TRANSPOSE_PIXELS, lane = threadIdx.x % TRANSPOSE_PIXELS, pixel = piece.pixel + lane;
  if (pixel >= of.area) return;
  T* const to = x + static_cast<long long>(piece.image) * of.channels * of.area + pixel;
#pragma unroll
  for (int i = 0; i < STORES; ++i) {
    const int stored = piece.channel + row + i * ROWS;
    const int channel = stored < of.depth ? given_channel(stored, of.segment, of.padded) : -1;
    if (channel >= 0) to[static_cast<long long>(channel) * of.area] = narrow<T>(tile[row + i * ROWS][lane]);
  }
}
