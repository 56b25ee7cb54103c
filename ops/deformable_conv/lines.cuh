// Tensors (N, C, H, W) laid out as lines (N, H, W, channels): 16 bytes are channels of one pixel. Channels come in
// segments, each padded to whole 16 bytes.
#pragma once
#include "divide.cuh"
#include "pack.cuh"

constexpr int TURNED_PIXELS = 32, TURNED_CHANNELS = 64;  // what a block of 256 threads turns

struct Lines {
  int area, channels;   // of x
  int segment, depth;   // channels of a segment as given, of a line as laid out
  Divisor padded;       // channels of a segment as laid out
};

// Which part of x a block turns, and where a channel as laid out is in x.
struct Piece {
  int image, pixel, channel;
  __device__ __forceinline__ Piece(const Lines& of, int block) {
    const int across = (of.area + TURNED_PIXELS - 1) / TURNED_PIXELS;
    const int along = (of.depth + TURNED_CHANNELS - 1) / TURNED_CHANNELS;
    image = block / (across * along);
    const int within = block - image * across * along;
    pixel = within / along * TURNED_PIXELS;
    channel = within % along * TURNED_CHANNELS;
  }
};

// -1 where only padding is.
__device__ __forceinline__ int given_channel(int channel, int segment, const Divisor& padded) {
  const int whole = quotient(channel, padded), inner = remainder(channel, whole, padded);
  return inner < segment ? whole * segment + inner : -1;
}

// A piece of x to `lines`; as many zeros to `zeros`, where that is wanted.
template <typename T>
__device__ __forceinline__ void turn(
    const T* __restrict__ x, T* __restrict__ lines, float* __restrict__ zeros, const Lines& of, int block) {
  __shared__ T tile[TURNED_CHANNELS][TURNED_PIXELS + 1];
  const Piece piece(of, block);
  const int lane = threadIdx.x % TURNED_PIXELS, pixel = piece.pixel + lane;
#pragma unroll
  for (int i = threadIdx.x / TURNED_PIXELS; i < TURNED_CHANNELS; i += 256 / TURNED_PIXELS) {
    const int channel = piece.channel + i < of.depth ? given_channel(piece.channel + i, of.segment, of.padded) : -1;
    const long long from = static_cast<long long>(piece.image) * of.channels + channel;
    tile[i][lane] = channel >= 0 && pixel < of.area ? x[from * of.area + pixel] : T(0.0f);
  }
  __syncthreads();
  const int j = threadIdx.x % TURNED_CHANNELS;
#pragma unroll
  for (int i = threadIdx.x / TURNED_CHANNELS; i < TURNED_PIXELS; i += 256 / TURNED_CHANNELS) {
    if (piece.pixel + i < of.area && piece.channel + j < of.depth) {
      const long long line = static_cast<long long>(piece.image) * of.area + piece.pixel + i;
      lines[line * of.depth + piece.channel + j] = tile[j][i];
      if (zeros != nullptr) zeros[line * of.depth + piece.channel + j] = 0;
    }
  }
}

// The other way round.
template <typename T>
__device__ __forceinline__ void turn_back(const float* __restrict__ lines, T* __restrict__ x, const Lines& of, int block) {
  __shared__ float tile[TURNED_CHANNELS][TURNED_PIXELS + 1];
  const Piece piece(of, block);
  const int j = threadIdx.x % TURNED_CHANNELS;
#pragma unroll
  for (int i = threadIdx.x / TURNED_CHANNELS; i < TURNED_PIXELS; i += 256 / TURNED_CHANNELS) {
    const long long line = static_cast<long long>(piece.image) * of.area + piece.pixel + i;
    const bool valid = piece.pixel + i < of.area && piece.channel + j < of.depth;
    tile[j][i] = valid ? lines[line * of.depth + piece.channel + j] : 0.0f;
  }
  __syncthreads();
  const int lane = threadIdx.x % TURNED_PIXELS, pixel = piece.pixel + lane;
#pragma unroll
  for (int i = threadIdx.x / TURNED_PIXELS; i < TURNED_CHANNELS; i += 256 / TURNED_PIXELS) {
    const int channel = piece.channel + i < of.depth ? given_channel(piece.channel + i, of.segment, of.padded) : -1;
    if (channel < 0 || pixel >= of.area) continue;
    x[(static_cast<long long>(piece.image) * of.channels + channel) * of.area + pixel] = narrow<T>(tile[i][lane]);
  }
}
