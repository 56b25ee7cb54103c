// Programs in which arguments of a kernel are literals (ops/_cuda/bind.py): its source, included after this, is inline code,
// and one kernel calls it.
#pragma once

template <typename Function>
struct Signature;

template <int I, typename First, typename... Rest>
struct TypeAt {
  using type = typename TypeAt<I - 1, Rest...>::type;
};
template <typename First, typename... Rest>
struct TypeAt<0, First, Rest...> {
  using type = First;
};
template <typename... T>
struct Signature<void (*)(T...)> {
  template <int I>
  using type = typename TypeAt<I, T...>::type;
};

// A value of the type that a parameter has, from the 32-bit words of its bytes.
template <typename T, int N>
__device__ __forceinline__ T from_words(const unsigned int (&words)[N]) {
  static_assert(sizeof(T) <= sizeof(words));
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

template <typename T>
__device__ __forceinline__ void set_address(T*& member, void* to) {
  member = static_cast<T*>(to);
}

// Tells the compiler the size of the launch.
__device__ __forceinline__ void assume_launch(uint3 grid, uint3 block) {
  __builtin_assume(gridDim.x == grid.x && gridDim.y == grid.y && gridDim.z == grid.z);
  __builtin_assume(blockIdx.x < grid.x && blockIdx.y < grid.y && blockIdx.z < grid.z);
  __builtin_assume(blockDim.x == block.x && blockDim.y == block.y && blockDim.z == block.z);
  __builtin_assume(threadIdx.x < block.x && threadIdx.y < block.y && threadIdx.z < block.z);
}

#define KERNEL(threads) __attribute__((global)) void __attribute__((launch_bounds(threads, RESIDENT)))
#undef __global__
#define __global__ static __device__ __forceinline__
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
