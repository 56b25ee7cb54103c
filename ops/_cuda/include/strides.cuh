// Strided operands over one common shape of up to six merged axes, see ops/_core/broadcast.py.
#pragma once
#include "divide.cuh"
#include "vector.cuh"

constexpr int AXES = 6;

struct Axes {  // lengths of `inner` axes, innermost first; the outermost one needs no length
  int inner;
  Divisor length[AXES];
};

struct Strides {  // in elements, innermost first; 0 along repeated axes
  long long at[AXES];
};

// Offset in an operand of flat element `index` of the common shape.
__device__ __forceinline__ long long strided_offset(unsigned int index, const Axes& axes, const Strides& strides) {
  long long at = 0;
#pragma unroll
  for (int axis = 0; axis < AXES - 1; ++axis) {
    if (axis == axes.inner) return at + strides.at[axis] * index;
    const unsigned int outer = quotient(index, axes.length[axis]);
    at += strides.at[axis] * remainder(index, outer, axes.length[axis]);
    index = outer;
  }
  return at + strides.at[AXES - 1] * index;
}

// Division of V flat elements from `at` on into rows of the innermost axis: `here` of them are in the first one.
template <int V>
struct RowSplit {
  unsigned int here;

  __device__ __forceinline__ RowSplit(unsigned int at, const Axes& axes) : here(V) {
    if constexpr (V == 1) return;
    const Divisor& length = axes.length[0];
    here = length.value - remainder(at, quotient(at, length), length);
  }

  // Loads `count` elements of an operand for flat elements from `at` on. dense: the operand is flat itself.
  template <typename T>
  __device__ __forceinline__ Vector<T, V> load(
      const T* from, const Strides& strides, bool dense, unsigned int at, unsigned int count, const Axes& axes) const {
    if constexpr (V == 1) return {from[dense ? at : strided_offset(at, axes, strides)]};
    if (dense && count == V) return ::load<T, V>(from + at);
    Vector<T, V> result{};
    if (dense || count < V || axes.length[0].value < V) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (i < count) result.at[i] = from[dense ? at + i : strided_offset(at + i, axes, strides)];
      }
      return result;
    }
    const T* const one = from + strided_offset(at, axes, strides);
    const T* const next = here < V ? from + strided_offset(at + here, axes, strides) : one;
    const auto* const word = reinterpret_cast<const VectorWord<T, V>*>(one);
    if (strides.at[0] == 1 && here >= V && reinterpret_cast<unsigned long long>(one) % sizeof(*word) == 0) {
      return as_vector<T, V>(*word);
    }
    if (strides.at[0] == 0) {  // repeated along the row
      const T first = *one, second = *next;
#pragma unroll
      for (int i = 0; i < V; ++i) result.at[i] = i < here ? first : second;
      return result;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const long long along = strides.at[0] * (i < here ? i : i - here);
      result.at[i] = (i < here ? one : next)[along];
    }
    return result;
  }
};

// Stores the first `count` of V elements.
template <typename T, int V>
__device__ __forceinline__ void store_some(T* to, const Vector<T, V>& vector, unsigned int count) {
  if (count == V) return store<T, V>(to, vector);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < count) to[i] = vector.at[i];
  }
}
