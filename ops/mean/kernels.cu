// mean: a sum in the accumulating type, divided once.
#include "reduce_columns.cuh"
#include "reduce_elements.cuh"
#include "reduce_rows.cuh"

template <typename T>
struct Mean : Sum<T> {
  using Acc = Wide<T>;
  Acc count, inverse;

  __device__ __forceinline__ T finish(Acc sum) const {  // division by a number whose reciprocal is known
    const Acc about = sum * inverse, left = fma(-about, count, sum);
    return narrow<T>(left == left ? fma(left, inverse, about) : about);  // the remainder of an infinite sum is NaN
  }
};

// Vectors in flight: more than the default, as a sum takes few registers.
template <>
constexpr int LANES_IN_FLIGHT<Mean<__half>> = 8;
template <>
constexpr int LANES_IN_FLIGHT<Mean<__nv_bfloat16>> = 8;
