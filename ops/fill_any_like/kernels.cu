// Fill with one pattern of 16 bytes; the ends that are not aligned element by element.
#include "pack.cuh"

template <typename W>  // an unsigned word as wide as an element
__global__ void __launch_bounds__(256) fill(W* __restrict__ out, W value, uint4 pattern, int head, long long packs, long long size) {
  const long long index = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (index < packs) reinterpret_cast<uint4*>(out + head)[index] = pattern;
  if (index < head) out[index] = value;
  const long long tail = head + packs * (16 / sizeof(W)) + index;
  if (tail < size) out[tail] = value;
}

// A block of as many threads as there are elements: nothing to compare, and nothing else to wait for.
template <typename W>
__global__ void __launch_bounds__(1024) fill_few(W* __restrict__ out, W value) {
  out[threadIdx.x] = value;
}
