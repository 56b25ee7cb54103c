// Gradients by one thread an element: where a norm lies anywhere, and of the largest or smallest magnitude in short rows.
#pragma once
#include "ties.cuh"

// grad_any_axes: a thread computes an element.
// Layout   x, dx in memory order; y, dy by `axes`, those of x with strides of y, 0 where x is reduced
// Grid     size / SINGLE_THREADS      Block  SINGLE_THREADS      Writes  dx
// Why      reduced and retained axes alternate: norms repeat in no order that other kernels know
template <typename T, int GRAD_MODE>
__global__ void __launch_bounds__(SINGLE_THREADS) grad_any_axes(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q, int size,
    Digits axes) {
  const int own = blockIdx.x * SINGLE_THREADS + threadIdx.x, at = min(own, size - 1);
  const T element = x[at];
  const long long norm = axes.count <= FEW_DIGITS ? offset_of<FEW_DIGITS>(at, axes) : offset_of<DIGITS>(at, axes);
  const Scale<Wide<T>> by = scale_of<Wide<T>, GRAD_MODE>(widen(y[norm]), widen(dy[norm]));
  store_where<T, 1, false>(dx + at, {narrow<T>(gradient<Wide<T>, GRAD_MODE>(widen(element), by, q))}, own < size);
}

// Elements of a row, `end` of them, that tie for its norm.
template <typename T>
__device__ __forceinline__ int count_ties(const T* row, unsigned int end, const TieShare<T>& share) {
  constexpr int IN_FLIGHT = 8;
  int count = 0;
  for (unsigned int first = 0; first < end; first += IN_FLIGHT) {
    T elements[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) elements[i] = row[min(first + i, end - 1)];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) count += first + i < end && share.tie(elements[i]);
  }
  return count;
}

// grad_inf_few: a thread computes an element, and counts the ties of its row.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  size / SINGLE_THREADS      Block  SINGLE_THREADS      Writes  dx
// Why      few elements are bound by latency: threads do not wait for each other
template <typename T>
__global__ void __launch_bounds__(SINGLE_THREADS) grad_inf_few(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, int size,
    Divisor length) {
  const int own = blockIdx.x * SINGLE_THREADS + threadIdx.x, at = min(own, size - 1);
  const unsigned int row = quotient(at, length);
  const T element = x[at], norm = y[row], grad = dy[row];
  const int count = count_ties(x + row * length.value, length.value, TieShare<T>(norm, grad));
  const T result = TieShare<T>(norm, grad, static_cast<Wide<T>>(count)).of(element);
  store_where<T, 1, false>(dx + at, {result}, own < size);
}
