// Copy a tensor into its flat order: 16-byte packs where it is contiguous, by index arithmetic where it is strided.
#include "pack.cuh"
#include "walk.cuh"

__global__ void __launch_bounds__(256) copy_packs(
    const uint4* __restrict__ x, uint4* __restrict__ out, long long packs, long long bytes) {
  const long long pack = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (pack < packs) out[pack] = x[pack];
  const long long tail = packs * 16 + pack;
  if (tail < bytes) reinterpret_cast<char*>(out)[tail] = reinterpret_cast<const char*>(x)[tail];
}

template <typename W>  // an unsigned word as wide as an element
__global__ void __launch_bounds__(256) gather(
    const W* __restrict__ x, W* __restrict__ out, unsigned int size, Axes axes, Strides strides) {
  const unsigned int index = blockIdx.x * 256 + threadIdx.x;
  if (index < size) out[index] = x[place(index, axes, strides)];
}
