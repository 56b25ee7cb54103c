// flatten: copies of contiguous tensors by 16-byte vectors, of strided ones by index arithmetic.
#include "flat.cuh"
#include "strides.cuh"

// copy_vectors: 16 bytes per thread, and a tail of bytes.
// Layout   x, out contiguous, as bytes                Grid, Block  as in flat.cuh
// Needs    both aligned to 16 bytes; EXTENT, vectors and evict_last_blocks as in flat.cuh      Writes  out[bytes]
template <Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) copy_vectors(
    const unsigned int* __restrict__ x, unsigned int* __restrict__ out, long long vectors, long long bytes,
    unsigned int evict_last_blocks) {
  const VectorAccess<4, EXTENT> access(vectors, blockIdx.x < evict_last_blocks);
  const long long tail = tail_of<16>(vectors, bytes);
  access.store(out, access.load(x));
  if (tail < bytes) reinterpret_cast<char*>(out)[tail] = reinterpret_cast<const char*>(x)[tail];
}

// gather: an element per thread, by index arithmetic.
// Layout   x by Axes and Strides, out flat; W: unsigned word of an element's width      Grid  size / 256      Block  256
// Writes   out[size]
template <typename W>
__global__ void __launch_bounds__(256) gather(
    const W* __restrict__ x, W* __restrict__ out, unsigned int size, Axes axes, Strides strides) {
  const unsigned int index = blockIdx.x * 256 + threadIdx.x;
  if (index < size) out[index] = x[strided_offset(index, axes, strides)];
}
