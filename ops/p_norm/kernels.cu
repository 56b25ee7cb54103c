// p_norm and its gradient, and the design document's three-kernel plan. Modes select the summed function, or the factor
// of the gradient.
#include "gradient.cuh"
#include "gradient_few.cuh"
#include "gradient_inf_columns.cuh"
#include "gradient_inf_rows.cuh"
#include "norm.cuh"

// grad_part: y_part = dy y^-(p-1), an element per thread.
// Layout   y, dy flat, of the reduced shape      Grid  size / GRAD_THREADS      Block  GRAD_THREADS
// Writes   part[size]
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_part(
    const T* __restrict__ y, const T* __restrict__ dy, Wide<T>* __restrict__ part, Wide<T> q, long long size) {
  using A = Wide<T>;
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const A norm = widen(y[index]);
  part[index] = norm == A(0) ? A(0) : widen(dy[index]) * accurate_power(norm, -q);
}

// grad_spread: y_part broadcast to the shape of x, an element per thread.
// Layout   part of the reduced shape, by Layout      Grid  size / GRAD_THREADS      Block  GRAD_THREADS
// Writes   spread[size], flat as x
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_spread(
    const Wide<T>* __restrict__ part, Wide<T>* __restrict__ spread, Layout layout, long long size) {
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const long long outer = index / layout.c, group = outer / layout.r2;
  const long long b = group % layout.b, a = group / (layout.b * layout.r1);
  spread[index] = part[(a * layout.b + b) * layout.c + index % layout.c];
}

// grad_fuse: dx = |x|^(p-1) sign(x) y_part, an element per thread.
// Layout   x, spread flat      Grid  size / GRAD_THREADS      Block  GRAD_THREADS
// Writes   dx[size]
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_fuse(
    const T* __restrict__ x, const Wide<T>* __restrict__ spread, T* __restrict__ dx, Wide<T> q, long long size) {
  using A = Wide<T>;
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const A value = widen(x[index]), part = spread[index];
  const A sign = value > A(0) ? A(1) : (value < A(0) ? A(-1) : value);
  dx[index] = narrow<T>(value == A(0) ? A(0) : accurate_power(magnitude(value), q) * sign * part);
}
