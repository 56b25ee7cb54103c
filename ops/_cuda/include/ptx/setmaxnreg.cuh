// setmaxnreg: reallocation of registers among the warpgroups of a block (sm_90a).
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Changes the registers per thread from BEFORE to COUNT; an increase waits until other warps have released enough.
template <int BEFORE, int COUNT>
__device__ __forceinline__ void setmaxnreg() {
  if constexpr (COUNT > BEFORE) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
  }
}

#endif
