// Strided operands over one common shape of up to six merged axes, see ops/_core/broadcast.py.
#pragma once
#include "divide.cuh"
#include "vector.cuh"

// AXES, most axes, is defined by ops/_cuda/pointwise.py.

// Lengths of axes, innermost first, but the outermost one. A: number of axes; absent ones have length 1. Of AXES at most,
// with the number of lengths, `inner`.
template <int A = AXES>
struct Axes;
DEFINE_Axes;  // of ops/_cuda/pointwise.py

// Strides of N operands in elements, innermost axis first; 0 along repeated and absent axes.
template <int A = AXES, int N = 1, typename S = long long>
struct Strides;
DEFINE_Strides;

template <int N, typename S>
struct Offsets {
  S at[N];
};

// Offsets in N operands of flat element `index` of the common shape: one division per axis serves all of them. Few axes need
// no branch, after which parameters arrive late.
template <int A, int N, typename S>
__device__ __forceinline__ Offsets<N, S> strided_offsets(
    unsigned int index, const Axes<A>& axes, const Strides<A, N, S>& strides) {
  Offsets<N, S> found{};
#pragma unroll
  for (int axis = 0; axis < A; ++axis) {
    bool last = axis == A - 1;
    if constexpr (A == AXES) last = last || axis == axes.inner;
    const unsigned int outer = last ? 0 : quotient(index, axes.length[axis]);
    const unsigned int along = last ? index : remainder(index, outer, axes.length[axis]);
#pragma unroll
    for (int i = 0; i < N; ++i) found.at[i] += strides.at[axis][i] * along;
    if (last) break;
    index = outer;
  }
  return found;
}

// V elements of an operand along the innermost axis, in flight: a vector, or one element that is repeated. Loads are
// predicated by `step`, the operand's stride along this axis, 1 or 0.
template <typename T, int V>
struct Along {
  VectorWord<T, V> vector;
  VectorWord<T, 1> one;

  __device__ __forceinline__ void fetch_from(const T* from, unsigned int step) {
    if constexpr (V > 1) vector = fetch_where<T, V, false>(from, step != 0);
    one = V == 1 ? fetch<T, 1>(from) : fetch_where<T, 1, false>(from, step == 0);
  }

  __device__ __forceinline__ Vector<T, V> get(unsigned int step) const {
    if constexpr (V == 1) {
      return as_vector<T, 1>(one);
    } else if constexpr (sizeof(T) == 2) {  // by words of two, which the compiler would select half by half
      VectorWord<T, V> result = vector;
      auto& words = reinterpret_cast<unsigned int(&)[V / 2]>(result);
#pragma unroll
      for (unsigned int& word : words) {
        word = step != 0 ? word : one * 0x10001u;
        asm("" : "+r"(word));
      }
      return as_vector<T, V>(result);
    } else {
      if (step != 0) return as_vector<T, V>(vector);
      Vector<T, V> result;
#pragma unroll
      for (int i = 0; i < V; ++i) result.at[i] = as_vector<T, 1>(one).at[0];
      return result;
    }
  }
};

// V flat elements from `at` on of N operands that are smaller than 2^31, in rows of at least V elements along the innermost
// axis: `here` of them are in the first row.
template <int V, int N>
struct RowSplit {
  using Steps = Strides<AXES, N, unsigned int>;
  unsigned int at, here;
  Offsets<N, unsigned int> first, next;

  __device__ __forceinline__ RowSplit(unsigned int at, const Axes<>& axes, const Steps& strides) : at(at) {
    const Divisor& length = axes.length[0];
    here = length.value - remainder(at, quotient(at, length), length);
    first = strided_offsets(at, axes, strides);
    next = here < V ? strided_offsets(at + here, axes, strides) : first;
  }

  // Loads from operand number `operand`. dense: the operand is flat itself.
  template <typename T>
  __device__ __forceinline__ Vector<T, V> load(const T* from, int operand, bool dense, const Steps& strides) const {
    if (dense) return ::load<T, V>(from + at);
    const T* const one = from + first.at[operand];
    const T* const following = from + next.at[operand];
    const unsigned int step = strides.at[0][operand];
    const auto* const word = reinterpret_cast<const VectorWord<T, V>*>(one);
    if (step == 1 && here >= V && reinterpret_cast<unsigned long long>(one) % sizeof(*word) == 0) {
      return as_vector<T, V>(*word);
    }
    Vector<T, V> result;
    if (step == 0) {  // repeated along the row
      const T value = *one, other = *following;
#pragma unroll
      for (int i = 0; i < V; ++i) result.at[i] = i < here ? value : other;
      return result;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = i < here ? one[step * i] : following[step * (i - here)];
    return result;
  }
};

// Stores the first `count` of V elements.
template <typename T, int V>
__device__ __forceinline__ void store_some(T* to, const Vector<T, V>& vector, unsigned int count) {
  if (V == 1 || count == V) return store<T, V>(to, vector);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < count) to[i] = vector.at[i];
  }
}
