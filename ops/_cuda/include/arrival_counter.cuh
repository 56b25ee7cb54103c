// Arrival counter: detects the last of several blocks.
#pragma once

// Returns true in the last of `blocks` blocks to arrive; resets the counter to zero for the next launch.
__device__ __forceinline__ bool arrive_last(unsigned int* counter, unsigned int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(counter, 1u) == blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}
