// wgmma: asynchronous matrix products of a warpgroup (sm_90a), their order and completion.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products issued since the last call become one group.
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int PENDING = 0>
__device__ __forceinline__ void wgmma_commit_and_wait() {
  wgmma_commit_group();
  wgmma_wait_group<PENDING>();
}

// The same; the compiler may not read the sums before.
template <int SIZE>
__device__ __forceinline__ void wgmma_commit_and_wait(float (&sum)[SIZE]) {
  wgmma_commit_and_wait<0>();
#pragma unroll
  for (int i = 0; i < SIZE; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

#define D8(I) "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3]), "+f"(d[I + 4]), "+f"(d[I + 5]), \
              "+f"(d[I + 6]), "+f"(d[I + 7])
#define D32(I) D8(I), D8(I + 8), D8(I + 16), D8(I + 24)
#define FIRST_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FIRST_32 FIRST_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FIRST_64 FIRST_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FIRST_96 FIRST_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FIRST_104 FIRST_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FIRST_128 FIRST_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(COLUMNS, TYPE, NUMBERS, A, B, ADD, TRANSPOSE_A, TRANSPOSE_B, ...)                                       \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADD ", 0;\n"                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NUMBERS "}, "         \
               A ", " B ", p, 1, 1, " TRANSPOSE_A ", " TRANSPOSE_B "; }"                                              \
               : __VA_ARGS__                                                                                    \
               : "l"(a), "l"(b), "r"(add), "n"(A_MN_MAJOR), "n"(B_MN_MAJOR))
#define WGMMA_32(TYPE) \
  WGMMA(32, TYPE, FIRST_16, "%16", "%17", "%18", "%19", "%20", D8(0), D8(8))
#define WGMMA_64(TYPE) \
  WGMMA(64, TYPE, FIRST_32, "%32", "%33", "%34", "%35", "%36", D32(0))
#define WGMMA_128(TYPE) \
  WGMMA(128, TYPE, FIRST_64, "%64", "%65", "%66", "%67", "%68", D32(0), D32(32))
#define WGMMA_192(TYPE) \
  WGMMA(192, TYPE, FIRST_96, "%96", "%97", "%98", "%99", "%100", D32(0), D32(32), D32(64))
#define WGMMA_208(TYPE) \
  WGMMA(208, TYPE, FIRST_104, "%104", "%105", "%106", "%107", "%108", D32(0), D32(32), D32(64), D8(96))
#define WGMMA_256(TYPE) \
  WGMMA(256, TYPE, FIRST_128, "%128", "%129", "%130", "%131", "%132", D32(0), D32(32), D32(64), D32(96))
#define MULTIPLY(COLUMNS, C_TYPE, TYPE)                                                                 \
  template <int A_MN_MAJOR, int B_MN_MAJOR = 1>                                                         \
  __device__ __forceinline__ void wgmma_mma_async(                                                           \
      float (&d)[COLUMNS / 2], unsigned long long a, unsigned long long b, int add, const C_TYPE*) {   \
    WGMMA_##COLUMNS(TYPE);                                                                              \
  }

// Like MULTIPLY for 64 columns, with a in registers: 16 rows per warp, as four 8x8 matrices. b is MN-major.
#define MULTIPLY_REGISTERS(C_TYPE, TYPE)                                                               \
  __device__ __forceinline__ void wgmma_mma_async(                                                          \
      float (&d)[32], const unsigned int (&a)[4], unsigned long long b, int add, const C_TYPE*) {     \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" FIRST_32 "}, "       \
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1; }"                                            \
                 : D32(0)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));    \
  }

// d (64 rows by COLUMNS) = a b, plus d if `add`; the depth is 16. a, b: descriptors; A_MN_MAJOR, B_MN_MAJOR: 1 if the
// factor's lines are its depth.
MULTIPLY(32, __half, "f16")
MULTIPLY(32, __nv_bfloat16, "bf16")
MULTIPLY(64, __half, "f16")
MULTIPLY(64, __nv_bfloat16, "bf16")
MULTIPLY(128, __half, "f16")
MULTIPLY(128, __nv_bfloat16, "bf16")
MULTIPLY(192, __half, "f16")
MULTIPLY(192, __nv_bfloat16, "bf16")
MULTIPLY(208, __half, "f16")
MULTIPLY(208, __nv_bfloat16, "bf16")
MULTIPLY(256, __half, "f16")
MULTIPLY(256, __nv_bfloat16, "bf16")
MULTIPLY_REGISTERS(__half, "f16")
MULTIPLY_REGISTERS(__nv_bfloat16, "bf16")

#undef MULTIPLY_REGISTERS
#undef MULTIPLY
#undef WGMMA_32
#undef WGMMA_64
#undef WGMMA_128
#undef WGMMA_192
#undef WGMMA_208
#undef WGMMA_256
#undef WGMMA
#undef FIRST_16
#undef FIRST_32
#undef FIRST_64
#undef FIRST_96
#undef FIRST_104
#undef FIRST_128
#undef D32
#undef D8

#endif
