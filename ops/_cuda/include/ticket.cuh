// Who comes last of several blocks.
#pragma once

// True in the last of `blocks` blocks to come here; leaves the ticket at zero for the next launch.
__device__ __forceinline__ bool arrive_last(unsigned int* ticket, unsigned int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}
