// Common parts of normalization's kernels: statistics of channels, sums over warps, vectors in their stored form.

#pragma once

#include "divide.cuh"
#include "vector.cuh"

constexpr unsigned int FULL = 0xffffffffu;

// Mean of some values and the sum of squared distances from it.
template <typename A>
struct Partial {
  A mean, squares;
};

template <typename A>
struct Statistics;  // (C,) each; the moving ones null if absent
DEFINE_Statistics;  // of call.py

// Quotient to two units in the last place, by short code: one-wave kernels are bound by instruction fetch.
__device__ __forceinline__ float ratio(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double ratio(double a, double b) { return a / b; }
__device__ __forceinline__ float inverse_root(float value) { return rsqrtf(value); }
__device__ __forceinline__ double inverse_root(double value) { return 1 / sqrt(value); }

// Lets the compiler load values before this, not where they are used, after the sums. Whole warps call it.
template <typename A>
__device__ __forceinline__ void ask_before(A& value) {
  value = __shfl_sync(FULL, value, threadIdx.x % 32);
}

template <typename A>
struct Moving {  // moving statistics of a channel
  A mean, variance;
};

template <typename A>
__device__ __forceinline__ Moving<A> load_moving(const Statistics<A>& from, int channel) {
  if (from.moving_mean == nullptr) return {A(0), A(0)};
  return {from.moving_mean[channel], from.moving_variance[channel]};
}

// The same without a branch; `any` (C,) is read if there are none.
template <typename A>
__device__ __forceinline__ Moving<A> load_moving_or(const Statistics<A>& from, int channel, const A* any) {
  const bool none = from.moving_mean == nullptr;
  return {(none ? any : from.moving_mean)[channel], (none ? any : from.moving_variance)[channel]};
}

template <typename A>
__device__ __forceinline__ void store_statistics(
    const Statistics<A>& to, int channel, A mean, A inverse, A variance, A n, A momentum, const Moving<A>& moving) {
  to.mean[channel] = mean;
  to.inv_variance[channel] = inverse;
  if (to.moving_mean == nullptr) return;
  const A fresh = A(1) - momentum;
  to.new_moving_mean[channel] = momentum * moving.mean + fresh * mean;
  to.new_moving_variance[channel] = momentum * moving.variance + fresh * (variance * ratio(n, n - A(1)));
}

template <typename A>
__device__ __forceinline__ void store_statistics(
    const Statistics<A>& to, int channel, A mean, A inverse, A variance, A n, A momentum) {
  store_statistics(to, channel, mean, inverse, variance, n, momentum, load_moving(to, channel));
}

template <typename A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(FULL, value, step);
  return value;
}

template <typename A>
struct Sums {
  A distances, squares;
};

// Sums, over a thread's pieces of `count` blocks (every 32nd from `first` on), of the distances of their means from `base`
// and of squares relative to it, after Chan et al. 1979. weigh: number of values of a block's piece.
template <typename A, int N, typename Weigh>
__device__ __forceinline__ Sums<A> about(A base, const Partial<A> (&pieces)[N], int first, int count, Weigh&& weigh) {
  Sums<A> sums{A(0), A(0)};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int block = i * 32 + first;
    if (block >= count) break;
    const A distance = pieces[i].mean - base, weight = weigh(block);
    sums.distances += weight * distance;
    sums.squares += pieces[i].squares + weight * distance * distance;
  }
  return sums;
}

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = 4;  // loads in flight per thread

// A vector in its stored form. Each `open` widens again: wide values would take twice the registers.
template <typename T, int V>
struct Closed {
  VectorWord<T, V> word;
  __device__ __forceinline__ Vector<T, V> open() {
    if constexpr (sizeof(T) == 2 && V == 8) {
      asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
    return as_vector<T, V>(word);
  }
  __device__ __forceinline__ void load(const T* from) { word = fetch<T, V>(from); }
  __device__ __forceinline__ void load_where(const T* from, bool there) { word = fetch_where<T, V, false>(from, there); }
  __device__ __forceinline__ void load_evict_last(const T* from) { word = fetch_evict_last<T, V>(from); }
  __device__ __forceinline__ void load_streaming(const T* from) { word = fetch<T, V, true>(from); }
  __device__ __forceinline__ void close() {  // discards values derived from it
    if constexpr (sizeof(word) >= 4) {
      auto& words = reinterpret_cast<unsigned int(&)[sizeof(word) / 4]>(word);
#pragma unroll
      for (unsigned int& one : words) asm volatile("" : "+r"(one));
    }
  }
};
