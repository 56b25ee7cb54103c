// Channels that one thread block normalizes in registers.
#pragma once
#include "statistics.cuh"

// normalize_alone: one thread block normalizes one channel, or threads of a warp one each; the values stay in registers.
// What is needed first is in the first 64 bytes of the arguments: other lines arrive later.
// Layout   x, y (N, C, post), post a multiple of V      Grid  C / 2^together     Block  ≤ ALONE_THREADS<T, V, P>
// Needs    at most P vectors for each of a channel's `threads`. If a block has several channels, 2^together of them, which
//          needs P = 1, these are 2^shift ≤ 32 neighbours in whole warps; of a single one, shift is 31
// Writes   y, statistics
// Why      all loads are in flight at once; short code, as a one-wave kernel is bound by instruction fetch
template <typename T, int V, int P>  // P: 7, 4 or 1; the numbers are defined by channels_first.py
constexpr int ALONE_THREADS =
    V == 1 && P > 1 ? ALONE_THREADS_SINGLE : (P == 7 ? ALONE_THREADS_7 : (P == 4 ? ALONE_THREADS_4 : ALONE_THREADS_1));
#if __CUDA_ARCH__ >= 1000
constexpr int FURTHER_REGISTERS = 16;  // avoids spills there
#else
constexpr int FURTHER_REGISTERS = 0;
#endif
template <typename T, int V, int P, bool ADDS>  // registers of a thread: x, addend, offsets, and a few others
constexpr int ALONE_REGISTERS =
    FURTHER_REGISTERS +
    (V * sizeof(T) <= 4 ? (V == 1 ? 40 : 48) : P * (V * sizeof(T) / 4 * (1 + ADDS) + 1) + (sizeof(T) == 8 ? 40 : 24));

template <typename T, int V, int P, bool ADDS>
__global__ void __launch_bounds__(
    ALONE_THREADS<T, V, P>, 65536 / ALONE_THREADS<T, V, P> / ALONE_REGISTERS<T, V, P, ADDS>) normalize_alone(
    const T* __restrict__ x, const Wide<T>* __restrict__ gamma, const Wide<T>* __restrict__ beta, int vectors, int channels,
    int post, int threads, Divisor vectors_per_image, int shift_and_together, T* __restrict__ y, Wide<T> epsilon, Wide<T> momentum,
    const T* __restrict__ addend, Statistics<Wide<T>> statistics) {
  using A = Wide<T>;
  __shared__ A slots[2][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int shift = P > 1 ? 31 : shift_and_together & 31, together = P > 1 ? 0 : shift_and_together >> 5;
  const int thread = threadIdx.x & ((1u << shift) - 1), own = (blockIdx.x << together) + (threadIdx.x >> shift);
  const int channel = P > 1 ? own : min(own, channels - 1);  // the last block may have fewer than `together`
  const unsigned int begin = channel * post, skip = (channels - 1) * post;  // distance between images' parts
  unsigned int at[P];
  Closed<T, V> held[P], added[P];
  // Threads with a single vector do not branch: surplus ones have the last.
  const bool has_vector = P > 1 || thread < vectors, valid = has_vector && own < channels;
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (P == 1 || thread + j * threads < vectors) take(j);
    }
  };
  const auto place = [&](int j) {  // widened at each use: pointers would take twice the registers
    asm volatile("" : "+r"(at[j]));
    return at[j];
  };
  each([&](int j) {
    const unsigned int vector = has_vector ? thread + j * threads : vectors - 1;
    at[j] = begin + vector * V + quotient(vector, vectors_per_image) * skip;
    held[j].load_evict_last(x + at[j]);
  });
  if constexpr (ADDS) each([&](int j) { added[j].load_streaming(addend + place(j)); });
  const A n = static_cast<A>(vectors) * V;
  A gain = gamma[channel], offset = beta[channel];
  constexpr bool EARLY = P <= 4;  // with more vectors, registers are scarce
  Moving<A> moving{};
  if constexpr (P == 1) {
    moving = load_moving_or(statistics, channel, gamma);
    ask_before(gain), ask_before(offset), ask_before(moving.mean), ask_before(moving.variance);
  } else if constexpr (EARLY) {
    moving = load_moving(statistics, channel);
  }

  const auto sum = [&](auto&& take, A* by_warp) {
    A total = 0;
    each([&](int j) {
      held[j].close();
      const Vector<T, V> values = held[j].open();
#pragma unroll
      for (int i = 0; i < V; ++i) total += take(widen(values.at[i]));
    });
    total = has_vector ? total : A(0);
    if (P == 1 && threads <= 32) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (step < threads) total += __shfl_xor_sync(FULL, total, step);
      }
      return total;
    }
    total = warp_sum(total);
    if (threads == 32) return total;
    if (lane == 0) by_warp[warp] = total;
    __syncthreads();
    return warp_sum(lane * 32 < threads ? by_warp[lane] : A(0));
  };
  const A mean = ratio(sum([](A value) { return value; }, slots[0]), n);
  const A variance = ratio(sum([&](A value) { return (value - mean) * (value - mean); }, slots[1]), n);
  const A inverse = inverse_root(variance + epsilon), scale = inverse * gain;
  each([&](int j) {
    held[j].close();
    const Vector<T, V> values = held[j].open();
    Vector<T, V> more, result;
    if constexpr (ADDS) more = added[j].open();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A value = (widen(values.at[i]) - mean) * scale + offset;
      if constexpr (ADDS) value += widen(more.at[i]);
      result.at[i] = narrow<T>(value);
    }
    if constexpr (P == 1) {
      store_where<T, V, true>(y + at[j], result, valid);
    } else {
      store_evict_last<T, V>(y + place(j), result);
    }
  });
  if (thread > 0 || own > channel) return;
  if constexpr (!EARLY) moving = load_moving(statistics, channel);
  store_statistics(statistics, channel, mean, inverse, variance, n, momentum, moving);
}
