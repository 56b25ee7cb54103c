// Tensors of 16 bits with channels first as `convolve_patches` reads them: channels last, in whole vectors.

#include "divide.cuh"
#include "vector.cuh"

DEFINE_PackPart;  // of pack_channels.py

// pack_channels: a block transposes a tile of channels by pixels of dy, or by taps of the filter.
// Layout   from (outer, limit, channels, places), to (places, padded) at `outer` and `inner` of each
// Grid     tiles of dy, then of the filter           Block   THREADS
// Needs    16-byte vectors of `to`, vectors of V pixels of dy
// Writes   to, with zeros beyond the channels and the limit
// Why      wgmma multiplies vectors of channels
template <int V>
__global__ void __launch_bounds__(THREADS) pack_channels(
    const unsigned short* __restrict__ dy, const unsigned short* __restrict__ filter, unsigned short* __restrict__ lines,
    unsigned short* __restrict__ taps, const __grid_constant__ PackPart of_dy, const __grid_constant__ PackPart of_filter) {
  __shared__ unsigned short tile[MOST_ELEMENTS];
  const bool first = blockIdx.x < of_dy.blocks;
  const PackPart& part = first ? of_dy : of_filter;
  const unsigned int block = first ? blockIdx.x : blockIdx.x - of_dy.blocks;
  const unsigned int along = quotient(block, part.place_tiles), batch = quotient(along, part.channel_tiles);
  const unsigned int outer = quotient(batch, part.each), inner = remainder(batch, outer, part.each);
  const int place0 = remainder(block, along, part.place_tiles) * part.width.value, pitch = part.width.value | 1;
  const int channel0 = remainder(along, batch, part.channel_tiles) * 8 * part.vectors.value;
  const bool exists = inner < part.limit;
  const unsigned short* const from = (first ? dy : filter) +
      ((static_cast<long long>(outer) * part.limit + inner) * part.channels + channel0) * part.places + place0;
  const int elements = 8 * part.vectors.value * part.width.value;
  const auto load_tile = [&](auto vector) {
    constexpr int N = sizeof(vector) / sizeof(unsigned short);
#pragma unroll 8
    for (int i = threadIdx.x * N; i < elements; i += THREADS * N) {
      const int channel = quotient(i, part.width), place = remainder(i, channel, part.width);
      const bool inside = exists && channel0 + channel < part.channels && place0 + place < part.places;
      if (inside) vector = load<unsigned short, N>(from + static_cast<long long>(channel) * part.places + place);
#pragma unroll
      for (int k = 0; k < N; ++k) tile[channel * pitch + place + k] = inside ? vector.at[k] : 0;
    }
  };
  if (first) load_tile(Vector<unsigned short, V>());
  else load_tile(Vector<unsigned short, 1>());
  __syncthreads();
  unsigned short* const to = (first ? lines : taps) + outer * part.outer + inner * part.inner + channel0;
#pragma unroll 2
  for (int i = threadIdx.x; i < elements / 8; i += THREADS) {
    const int place = quotient(i, part.vectors), channel = remainder(i, place, part.vectors) * 8;
    if (channel0 + channel >= part.padded || place0 + place >= part.places) continue;
    Vector<unsigned short, 8> vector;
#pragma unroll
    for (int j = 0; j < 8; ++j) vector.at[j] = tile[(channel + j) * pitch + place];
    store<unsigned short, 8>(to + static_cast<long long>(place0 + place) * part.pitch + channel, vector);
  }
}
