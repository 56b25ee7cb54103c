// fence.proxy.async: orders stores to shared memory before reads by wgmma and bulk copies.
#pragma once

#if __CUDA_ARCH__ >= 900

// Waits for this thread's stores to global memory too.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
