// Copy a tensor into its flat order: 16-byte vectors where it is contiguous, by index arithmetic where it is strided.
#include "flat.cuh"
#include "walk.cuh"

template <Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) copy_vectors(
    const unsigned int* __restrict__ x, unsigned int* __restrict__ out, long long vectors, long long bytes,
    unsigned int kept) {
  const Spot<4, EXTENT> spot(vectors, blockIdx.x < kept);
  const long long tail = tail_of<16>(vectors, bytes);
  spot.store(out, spot.load(x));
  if (tail < bytes) reinterpret_cast<char*>(out)[tail] = reinterpret_cast<const char*>(x)[tail];
}

template <typename W>  // an unsigned word as wide as an element
__global__ void __launch_bounds__(256) gather(
    const W* __restrict__ x, W* __restrict__ out, unsigned int size, Axes axes, Strides strides) {
  const unsigned int index = blockIdx.x * 256 + threadIdx.x;
  if (index < size) out[index] = x[strided_offset(index, axes, strides)];
}
