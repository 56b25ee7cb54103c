// Blends of lerp, and kernels of lerp and its gradient for operands that broadcast.
#pragma once
#include "flat.cuh"
#include "strides.cuh"

// x + weight (y - x): y at weight 1 and x where x = y, exactly, and finite if the result is. The difference of numbers
// of one sign cannot overflow; numbers of different signs are weighted separately, without cancellation.
template <typename A>
__device__ __forceinline__ A blend(A x, A y, A weight) {
  const A rest = A(1) - weight, step = y - x;
  const A near = weight < A(0.5) ? x + weight * step : y - rest * step;
  return (x < A(0)) == (y < A(0)) ? near : rest * x + weight * y;
}

// The same for a weight below 1/2, or not: then x and y are exchanged, and `share` is 1 - weight.
template <typename A>
__device__ __forceinline__ A blend_share(A x, A y, A share) {
  const A near = x + share * (y - x), apart = (A(1) - share) * x + share * y;  // of which no branch selects one
  return (x < A(0)) == (y < A(0)) ? near : apart;
}

template <typename T, bool TENSOR>
struct Given {  // a weight as an argument: a tensor, or a number
  using type = const T*;
};
template <typename T>
struct Given<T, false> {
  using type = Wide<T>;
};


// V elements of x and y, weighted by the `parts` of a TENSOR or by a number.
template <typename T, int V, bool TENSOR>
__device__ __forceinline__ Vector<T, V> blended(
    const Vector<T, V>& from, const Vector<T, V>& to, const Vector<T, V>& parts, typename Given<T, TENSOR>::type weight) {
  Vector<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Wide<T> first = widen(from.at[v]), second = widen(to.at[v]);
    if constexpr (TENSOR) {
      result.at[v] = narrow<T>(blend(first, second, widen(parts.at[v])));
    } else {
      result.at[v] = narrow<T>(blend_share(first, second, weight));
    }
  }
  return result;
}

// Offsets in operands of E vectors of V elements per thread, a block apart.
template <int V, int E>
struct BlockWalk {
  static constexpr unsigned int STEP = flat_threads<V * E>() * V;
  unsigned int start = blockIdx.x * (STEP * E) + threadIdx.x * V;

  // Flat offset of vector i, which may be beyond the last one.
  __device__ __forceinline__ unsigned int at(int i) const { return start + i * STEP; }

  // Offsets of vector i, or of the last one.
  template <int A, int N>
  __device__ __forceinline__ Offsets<N, unsigned int> offsets(
      int i, unsigned int size, const Axes<A>& axes, const Strides<A, N, unsigned int>& strides) const {
    return strided_offsets(at(i) < size ? at(i) : size - V, axes, strides);
  }
};

// Offsets in N operands of E vectors of V elements per thread. Those of a warp follow one another, so that they are in two
// groups at most of at least 32 V E elements, the product of the innermost K axes: a walk over the other axes serves all.
// Strides are relative: that of an axis less those of the whole axis within it, modulo 2^32. So quotients suffice, without
// remainders: offset = index · stride[0] + index / length[0] · stride[1] + ...
template <int V, int E, int K, int N>
struct GroupWalk {
  using Steps = Strides<AXES, N, unsigned int>;
  static constexpr unsigned int STEP = 32 * V;
  unsigned int own, end;
  Offsets<N, unsigned int> here, next;

  __device__ __forceinline__ GroupWalk(unsigned int size, const Axes<>& axes, const Steps& strides, const Divisor& group) {
    const unsigned int lane = threadIdx.x % 32, first = (blockIdx.x * FLAT_THREADS + threadIdx.x - lane) * (V * E);
    const unsigned int index = quotient(min(first, size - V), group);
    own = first + lane * V;
    end = (index + 1) * group.value;
    here = next = outer(index, axes, strides);
    if (first + STEP * E > end) next = outer(index + 1, axes, strides);
  }

  static __device__ __forceinline__ Offsets<N, unsigned int> outer(
      unsigned int index, const Axes<>& axes, const Steps& strides) {
    Offsets<N, unsigned int> found{};
#pragma unroll
    for (int axis = K; axis < AXES; ++axis) {
#pragma unroll
      for (int n = 0; n < N; ++n) found.at[n] += strides.at[axis][n] * index;
      if (axis == AXES - 1 || axis == axes.inner) break;
      index = quotient(index, axes.length[axis]);
    }
    return found;
  }

  // Flat offset of vector i, which may be beyond the last one.
  __device__ __forceinline__ unsigned int at(int i) const { return own + i * STEP; }

  // Offsets of vector i, or of the last one.
  __device__ __forceinline__ Offsets<N, unsigned int> offsets(
      int i, unsigned int size, const Axes<>& axes, const Steps& strides) const {
    unsigned int index = min(at(i), size - V);
    const bool within = index < end;
    Offsets<N, unsigned int> found;
#pragma unroll
    for (int n = 0; n < N; ++n) found.at[n] = within ? here.at[n] : next.at[n];
#pragma unroll
    for (int axis = 0; axis < K; ++axis) {
#pragma unroll
      for (int n = 0; n < N; ++n) found.at[n] += strides.at[axis][n] * index;
      if (axis < K - 1) index = quotient(index, axes.length[axis]);
    }
    return found;
  }
};

// The E vectors of a thread, at the places of a walk, with all loads before the first store.
template <typename T, int V, int E, bool TENSOR, typename Walk, int A>
__device__ __forceinline__ void blend_along(
    const Walk& walk, const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out,
    typename Given<T, TENSOR>::type weight, unsigned int size, const Strides<A, 2 + TENSOR, unsigned int>& strides,
    const Axes<A>& axes) {
  Along<T, V> of_x[E], of_y[E], of_weight[E];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const auto offsets = walk.offsets(i, size, axes, strides);
    of_x[i].fetch_from(x + offsets.at[0], strides.at[0][0]);
    of_y[i].fetch_from(y + offsets.at[1], strides.at[0][1]);
    if constexpr (TENSOR) of_weight[i].fetch_from(weight + offsets.at[2], strides.at[0][2]);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    Vector<T, V> parts;
    if constexpr (TENSOR) parts = of_weight[i].get(strides.at[0][2]);
    const auto result = blended<T, V, TENSOR>(of_x[i].get(strides.at[0][0]), of_y[i].get(strides.at[0][1]), parts, weight);
    // one address with constant offsets, stored by a predicate: parameters that are read after a branch arrive late
    store_where<T, V, V * E == 1>(out + walk.at(0) + i * Walk::STEP, result, walk.at(i) < size);
  }
}

// lerp_broadcast: a thread computes E vectors of V elements, a block apart, for operands that broadcast in any pattern.
// Layout   out flat; x, y and a weight TENSOR by Strides over its axes, at most A
// Grid     size / V / E / flat_threads<V * E>()      Block  flat_threads<V * E>()
// Needs    rows of the innermost axis are whole, aligned vectors in out and all operands that are not repeated along it;
//          fewer than 2^31 elements
// Writes   out[size]
// Why      no vector lies in two rows: one index computation serves V elements, without branches, so that all loads are in
//          flight. The arguments of two axes are within 64 bytes: other lines arrive later
template <typename T, int V, int E, int A, bool TENSOR>
__global__ void __launch_bounds__(flat_threads<V * E>()) lerp_broadcast(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, typename Given<T, TENSOR>::type weight,
    unsigned int size, Strides<A, 2 + TENSOR, unsigned int> strides, Axes<A> axes) {
  blend_along<T, V, E, TENSOR>(BlockWalk<V, E>(), x, y, out, weight, size, strides, axes);
}

// lerp_grouped: a thread computes E vectors of V elements for operands of many axes; those of a warp follow one another.
// Layout   as in lerp_broadcast, by relative strides over up to AXES axes; group: the product of the innermost K
// Grid     size / V / E / FLAT_THREADS      Block  FLAT_THREADS
// Needs    as lerp_broadcast; more than K axes; group >= 32 V E      Writes  out[size]
// Why      a warp is in two groups at most: one walk over the outer axes serves E vectors, which walk K axes each
template <typename T, int V, int E, int K, bool TENSOR>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_grouped(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, typename Given<T, TENSOR>::type weight,
    unsigned int size, Strides<AXES, 2 + TENSOR, unsigned int> strides, Axes<> axes, Divisor group) {
  const GroupWalk<V, E, K, 2 + TENSOR> walk(size, axes, strides, group);
  blend_along<T, V, E, TENSOR>(walk, x, y, out, weight, size, strides, axes);
}

// lerp_split: a thread computes a vector of V elements, which may lie in two rows or more.
// Layout   as in lerp_broadcast, or dense like out: a bit of `dense` for each of x, y and weight
// Grid     size / V / FLAT_THREADS      Block  FLAT_THREADS
// Needs    out and dense operands aligned; fewer than 2^31 elements      Writes  out[size]
// Why      a vector spans two rows at most unless rows are shorter: two index computations serve V elements
template <typename T, int V, bool TENSOR>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_split(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, typename Given<T, TENSOR>::type weight,
    unsigned int size, Strides<AXES, 2 + TENSOR, unsigned int> strides, Axes<> axes, int dense) {
  const unsigned int at = (blockIdx.x * FLAT_THREADS + threadIdx.x) * V;
  if (at >= size) return;
  const unsigned int count = min(size - at, static_cast<unsigned int>(V));
  Vector<T, V> from, to, parts;
  if (count < V || axes.length[0].value < V) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const auto offsets = strided_offsets(at + min(i, count - 1), axes, strides);
      from.at[i] = x[offsets.at[0]];
      to.at[i] = y[offsets.at[1]];
      if constexpr (TENSOR) parts.at[i] = weight[offsets.at[2]];
    }
  } else {
    const RowSplit<V, 2 + TENSOR> split(at, axes, strides);
    from = split.load(x, 0, dense & 1, strides);
    to = split.load(y, 1, dense & 2, strides);
    if constexpr (TENSOR) parts = split.load(weight, 2, dense & 4, strides);
  }
  store_some<T, V>(out + at, blended<T, V, TENSOR>(from, to, parts, weight), count);
}

// The gradients of x and y by V elements of dout and their weights.
template <typename T, int V>
struct Gradients {
  Vector<T, V> first, second;

  __device__ __forceinline__ Gradients(const Vector<T, V>& given, const Vector<T, V>& parts) {
    using W = Wide<T>;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const W value = widen(given.at[v]), part = widen(parts.at[v]);
      first.at[v] = narrow<T>((W(1) - part) * value);
      second.at[v] = narrow<T>(part * value);
    }
  }
};

// The gradients at the E vectors of a thread, at the places of a walk, with all loads before the first store.
template <typename T, int V, int E, typename Walk, int A>
__device__ __forceinline__ void scale_along(
    const Walk& walk, const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, const Strides<A, 1, unsigned int>& strides, const Axes<A>& axes) {
  VectorWord<T, V> given[E];
  Along<T, V> of_weight[E];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    given[i] = fetch<T, V>(dout + min(walk.at(i), size - V));
    of_weight[i].fetch_from(weight + walk.offsets(i, size, axes, strides).at[0], strides.at[0][0]);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const unsigned int at = walk.at(i);
    if (V * E > 1 && at >= size) break;
    const Gradients<T, V> found(as_vector<T, V>(given[i]), of_weight[i].get(strides.at[0][0]));
    store_where<T, V, V * E == 1>(dx + at, found.first, at < size && dx != nullptr);
    store_where<T, V, V * E == 1>(dy + at, found.second, at < size && dy != nullptr);
  }
}

// grad_broadcast: a thread computes E vectors of V elements, a block apart, without sums, for a weight that broadcasts.
// Layout   dout, dx, dy flat; weight by Strides over their axes, at most A
// Grid, Block, Needs  as in lerp_broadcast      Writes  dx[size], dy[size], each unless null      Why  as there
template <typename T, int V, int E, int A>
__global__ void __launch_bounds__(flat_threads<V * E>()) grad_broadcast(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Strides<A, 1, unsigned int> strides, Axes<A> axes) {
  scale_along<T, V, E>(BlockWalk<V, E>(), dout, weight, dx, dy, size, strides, axes);
}

// grad_grouped: a thread computes E vectors of V elements, without sums, for a weight of many axes.
// Layout   as in grad_broadcast, by relative strides over up to AXES axes
// Grid, Block, Needs  as in lerp_grouped      Writes  dx[size], dy[size], each unless null
template <typename T, int V, int E, int K>
__global__ void __launch_bounds__(FLAT_THREADS) grad_grouped(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Strides<AXES, 1, unsigned int> strides, Axes<> axes, Divisor group) {
  const GroupWalk<V, E, K, 1> walk(size, axes, strides, group);
  scale_along<T, V, E>(walk, dout, weight, dx, dy, size, strides, axes);
}

// grad_split: a thread computes a vector of V elements, which may lie in two rows or more, without sums.
// Layout   as in grad_broadcast      Grid, Block, Why  as in lerp_split
// Needs    dout, dx and dy aligned; fewer than 2^31 elements      Writes  dx[size], dy[size], each unless null
template <typename T, int V>
__global__ void __launch_bounds__(FLAT_THREADS) grad_split(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Strides<AXES, 1, unsigned int> strides, Axes<> axes) {
  const unsigned int at = (blockIdx.x * FLAT_THREADS + threadIdx.x) * V;
  if (at >= size) return;
  const unsigned int count = min(size - at, static_cast<unsigned int>(V));
  Vector<T, V> given, parts;
  if (count < V || axes.length[0].value < V) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int index = at + min(i, count - 1);
      given.at[i] = dout[index];
      parts.at[i] = weight[strided_offsets(index, axes, strides).at[0]];
    }
  } else {
    given = load<T, V>(dout + at);
    parts = RowSplit<V, 1>(at, axes, strides).load(weight, 0, false, strides);
  }
  const Gradients<T, V> found(given, parts);
  if (dx != nullptr) store_some<T, V>(dx + at, found.first, count);
  if (dy != nullptr) store_some<T, V>(dy + at, found.second, count);
}
