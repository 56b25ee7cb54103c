// What one block sends to another: words of 32 bits, each with a flag in one access, so that nothing need be fenced.
// Where nothing was sent the words are zero.
#pragma once

template <typename A>
constexpr int WORDS = sizeof(A) / 4;

template <typename A>
__device__ __forceinline__ void send(unsigned long long* to, const A& value) {
  const unsigned int* const words = reinterpret_cast<const unsigned int*>(&value);
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to + i), "l"(1ull << 32 | words[i]) : "memory");
  }
}

// Waits for `count` values of at most N that are sent to places `apart` words from each other.
template <int N, typename A>
__device__ __forceinline__ void await(A (&values)[N], const unsigned long long* from, int apart, int count) {
  unsigned long long found[N][WORDS<A>];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < WORDS<A> && j < count; ++i) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found[j][i]) : "l"(from + j * apart + i) : "memory");
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < WORDS<A> && j < count; ++i) all = all && found[j][i] >> 32 != 0;
    }
  } while (!all);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    unsigned int* const words = reinterpret_cast<unsigned int*>(&values[j]);
#pragma unroll
    for (int i = 0; i < WORDS<A> && j < count; ++i) words[i] = static_cast<unsigned int>(found[j][i]);
  }
}

template <typename A>
__device__ __forceinline__ A await(const unsigned long long* from) {
  A values[1];
  await(values, from, 0, 1);
  return values[0];
}

// Leaves the place empty for the next launch.
template <typename A>
__device__ __forceinline__ void clear(unsigned long long* from) {
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) from[i] = 0;
}
