// Ties of porder +-inf: their share of dy, and their detection.
//
// Elements that tie for the norm share dy. Kernels write the result as if the extremum were unique, count ties meanwhile,
// and rewrite the tied elements if there are several, which is rare. x is read once.
#pragma once
#include "gradient.cuh"

template <typename T>
struct TieShare {  // gradient of each of `count` elements that tie for one norm
  Wide<T> norm, share;
  // Zeros never tie: their share would be zero anyway.
  __device__ __forceinline__ TieShare(T y, T dy, Wide<T> count = 1)
      : norm(widen(y) > 0 ? widen(y) : Wide<T>(-1)), share(count > 1 ? widen(dy) / count : widen(dy)) {}
  // Threshold that |x| of tied elements equals. If it is NaN all elements may tie, as zero times dy is not zero.
  __device__ __forceinline__ Wide<T> threshold() const {
    const Wide<T> other = Wide<T>(0) * share;
    return other == Wide<T>(0) ? norm : other;
  }
  __device__ __forceinline__ bool tie(T x) const {  // NaN ties with any norm
    return magnitude(widen(x)) == norm || widen(x) != widen(x);
  }
  __device__ __forceinline__ T of(T x) const {
    if (widen(x) != widen(x)) return x;
    if (magnitude(widen(x)) != norm) return narrow<T>(Wide<T>(0) * share);
    return narrow<T>(widen(x) > 0 ? share : -share);
  }
};

template <typename T>
__device__ __forceinline__ bool may_tie(T x, Wide<T> threshold) {  // NaN does
  const Wide<T> size = magnitude(widen(x));
  return !(size < threshold) && !(size > threshold);
}

template <typename T>
struct Paired;
template <>
struct Paired<__half> {
  using type = __half2;
};
template <>
struct Paired<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

// Compares two elements with their thresholds: 16 bits are set for each that may tie.
template <typename T>
__device__ __forceinline__ unsigned int tie_bits_of_pair(unsigned int two, typename Paired<T>::type thresholds) {
  return __hequ2_mask(__habs2(reinterpret_cast<const typename Paired<T>::type&>(two)), thresholds);
}

// Compares eight elements with one threshold: a bit is set for each that may tie.
template <typename T>
__device__ __forceinline__ unsigned int tie_bits(const uint4& word, T threshold) {
  const typename Paired<T>::type thresholds(threshold, threshold);
  const auto of = [&](unsigned int two) { return tie_bits_of_pair<T>(two, thresholds); };
  const unsigned int bits =
      (of(word.x) & 0x20001u) | (of(word.y) & 0x80004u) | (of(word.z) & 0x200010u) | (of(word.w) & 0x800040u);
  return (bits | bits >> 16) & 0xffu;
}

// Whether any element of a vector may tie, each with its own threshold.
template <typename T, int V>
__device__ __forceinline__ bool any_may_tie(const Vector<T, V>& vector, const Vector<T, V>& thresholds) {
  if constexpr (V == 8) {
    using P = typename Paired<T>::type;
    unsigned int found = 0;
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      found |= tie_bits_of_pair<T>(reinterpret_cast<const unsigned int&>(vector.at[i]), reinterpret_cast<const P&>(thresholds.at[i]));
    }
    return found != 0;
  } else {
    bool found = false;
#pragma unroll
    for (int i = 0; i < V; ++i) found |= may_tie(vector.at[i], widen(thresholds.at[i]));
    return found;
  }
}

// Range of x and dx in aligned vectors: elements [low, high) past `from`, or all if vectors are WHOLE. I: type of the
// number of elements.
template <typename T, int V, typename I, bool WHOLE = false>
struct Part {
  using W = VectorWord<T, V>;
  const T* from;
  T* to;
  I low, high, vectors;

  __device__ __forceinline__ Part(const T* from, T* to, I low, I high)
      : from(from), to(to), low(low), high(high), vectors((high + V - 1) / V) {}

  __device__ __forceinline__ bool ours(I at) const { return WHOLE || (at >= low && at < high); }
  __device__ __forceinline__ W fetch(I vector) const { return fetch_evict_last<T, V>(from + vector * V, vector < vectors); }
  __device__ __forceinline__ void write(const Vector<T, V>& given, I vector) const {
    if (WHOLE || (vector * V >= low && vector * V + V <= high)) {
      store_evict_last<T, V>(to + vector * V, given);
      return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (ours(vector * V + i)) to[vector * V + i] = given.at[i];
    }
  }
};

// Range of `length` elements from `begin` on. shift: elements from an aligned address to x and dx.
template <typename T, int V, typename I>
__device__ __forceinline__ Part<T, V, I> part_from(const T* x, T* dx, long long begin, I length, int shift) {
  const long long first = (begin + shift) / V * V - shift;
  const I low = static_cast<I>(begin - first);
  return {x + first, dx + first, low, low + length};
}
