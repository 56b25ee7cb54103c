// dot: products summed in the accumulating type. Integers wrap; complex numbers are not conjugated.
#include "reduce_elements.cuh"
#include "reduce_rows.cuh"

template <typename T>
struct Dot : Sum<T> {
  using Acc = Wide<T>;
  static constexpr bool TWO = true;
  unsigned int unused;

  __device__ __forceinline__ Acc take(Acc sum, T x, T y) const { return sum + widen(x) * widen(y); }
  __device__ __forceinline__ T finish(Acc sum) const { return narrow<T>(sum); }
};

template <typename T>
struct IntegerDot {  // T unsigned: overflow wraps, as two's complement does
  using Input = T;
  using Output = T;
  using Acc = T;
  static constexpr bool TWO = true;
  unsigned int unused;

  __device__ __forceinline__ T neutral() const { return T(0); }
  __device__ __forceinline__ Acc identity() const { return Acc(0); }
  __device__ __forceinline__ Acc take(Acc sum, T x, T y) const { return sum + x * y; }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const { return a + b; }
  __device__ __forceinline__ T finish(Acc sum) const { return sum; }
};

template <typename T>
struct ComplexDot {  // T is float2 or double2
  using Input = T;
  using Output = T;
  using Acc = T;
  static constexpr bool TWO = true;
  unsigned int unused;

  __device__ __forceinline__ T neutral() const { return {0, 0}; }
  __device__ __forceinline__ Acc identity() const { return {0, 0}; }
  __device__ __forceinline__ Acc take(Acc sum, T a, T b) const {
    return {sum.x + a.x * b.x - a.y * b.y, sum.y + a.x * b.y + a.y * b.x};
  }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const { return {a.x + b.x, a.y + b.y}; }
  __device__ __forceinline__ T finish(Acc sum) const { return sum; }
};
