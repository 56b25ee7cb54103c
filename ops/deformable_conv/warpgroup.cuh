// Warpgroup products, asynchronous copies and register reallocation of Hopper, by PTX. Shared memory has 128-byte-swizzled
// rows: piece i of 16 bytes of row r is stored at i ^ r % 8.
#pragma once
#include "ptx/bar_sync.cuh"
#include "ptx/fence_proxy_async.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "tensor_map.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Copies 16 bytes, zeros if not `valid`; complete once `cp_async_wait_all` has returned in this thread.
__device__ __forceinline__ void cp_async_zfill(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Changes the registers per thread from BEFORE to COUNT; an increase waits until other warps have released enough.
template <int BEFORE, int COUNT>
__device__ __forceinline__ void setmaxnreg() {
  if constexpr (COUNT > BEFORE) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
  }
}

// Descriptor of rows in shared memory; `start` is a multiple of 8 rows (aligned to 1024 bytes) and of 32 bytes.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* start) {
  const unsigned int address = shared_address(start);
  return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((address & 0x3ffff) >> 4);
}

#define EIGHT(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32 REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64                                                                               \
  REGISTERS_32                                                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
// d (64 x N) = a b^T, plus d if `add`; a and b are 64 and N rows of 16 numbers.
#define MULTIPLY(T, TYPE, N, REGISTERS, A, B, P, ...)                                                              \
  __device__ __forceinline__ void multiply(                                                                        \
      float (&d)[N / 2], unsigned long long a, unsigned long long b, int add, const T*) {                          \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE   \
                 "." TYPE " {" REGISTERS "}, " A ", " B ", p, 1, 1, 0, 0; }"                                       \
                 : __VA_ARGS__                                                                                     \
                 : "l"(a), "l"(b), "r"(add));                                                                      \
  }
#define MULTIPLY_ALL(T, TYPE)                                                                                        \
  MULTIPLY(T, TYPE, 32, REGISTERS_16, "%16", "%17", "%18", EIGHT(d, 0), EIGHT(d, 8))                                 \
  MULTIPLY(T, TYPE, 64, REGISTERS_32, "%32", "%33", "%34", EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24))     \
  MULTIPLY(T, TYPE, 128, REGISTERS_64, "%64", "%65", "%66", EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24),    \
           EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56))
MULTIPLY_ALL(__half, "f16")
MULTIPLY_ALL(__nv_bfloat16, "bf16")
#undef MULTIPLY_ALL
#undef MULTIPLY
#undef REGISTERS_64
#undef REGISTERS_32
#undef REGISTERS_16
#undef EIGHT

#endif
