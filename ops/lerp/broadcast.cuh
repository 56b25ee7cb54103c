// Functors of lerp and its gradient, and the kernels for operands that broadcast.
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
  using type = const T* __restrict__;
};
template <typename T>
struct Given<T, false> {
  using type = Wide<T>;
};

// A functor has the arguments `first` to `fourth` of a kernel, and `last`, which lerp_flat alone has. It names the operands to
// READ, of which the first STRIDED may broadcast and others have the shape of the results, and computes the results.

// out = blend(x, y, weight), by a TENSOR of weights or a number. kept: leading blocks of a LARGE launch that store with
// evict_last.
template <typename T, bool TENSOR>
struct Blend {
  using Element = T;
  using Second = const T* __restrict__;
  using Fourth = typename Given<T, TENSOR>::type;
  using Last = unsigned int;
  static constexpr int READ = 2 + TENSOR, STRIDED = READ;
  const T *x, *y;
  T* out;
  Fourth weight;
  Last kept;

  __device__ __forceinline__ bool evicts_last() const { return blockIdx.x < kept; }
  __device__ __forceinline__ const T* operand(int number) const {
    if constexpr (TENSOR) return number == 0 ? x : number == 1 ? y : weight;
    return number == 0 ? x : y;
  }

  // put(to, vector, wanted): stores a vector of results unless they are not wanted.
  template <int V, typename Put>
  __device__ __forceinline__ void compute(const Vector<T, V> (&operands)[READ], const Put& put) const {
    Vector<T, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const Wide<T> from = widen(operands[0].at[v]), to = widen(operands[1].at[v]);
      if constexpr (TENSOR) {
        result.at[v] = narrow<T>(blend(from, to, widen(operands[2].at[v])));
      } else {
        result.at[v] = narrow<T>(blend_share(from, to, weight));
      }
    }
    put(out, result, true);
  }
};

// dx = (1 - weight) dout and dy = weight dout, each unless null, by a TENSOR of weights or a number, of which `rest` is 1 less
// it. SUBTRACT: dx = dout - dy, the design document's formula.
template <typename T, bool TENSOR, bool SUBTRACT>
struct Gradients {
  using Element = T;
  using Second = typename Given<T, TENSOR>::type;
  using Fourth = T* __restrict__;
  using Last = Wide<T>;
  static constexpr int READ = 1 + TENSOR, STRIDED = TENSOR;
  const T* dout;
  Second weight;
  T *dx, *dy;
  Last rest;

  __device__ __forceinline__ bool evicts_last() const { return true; }
  __device__ __forceinline__ const T* operand(int number) const {
    if constexpr (TENSOR) return number == 0 ? weight : dout;
    return dout;
  }

  template <int V, typename Put>
  __device__ __forceinline__ void compute(const Vector<T, V> (&operands)[READ], const Put& put) const {
    using W = Wide<T>;
    Vector<T, V> first, second;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const W value = widen(operands[STRIDED].at[v]);
      W part, left;
      if constexpr (TENSOR) {
        part = widen(operands[0].at[v]), left = W(1) - part;
      } else {
        part = weight, left = rest;
      }
      first.at[v] = narrow<T>(SUBTRACT ? value - part * value : left * value);
      second.at[v] = narrow<T>(part * value);
    }
    put(dx, first, dx != nullptr);
    put(dy, second, dy != nullptr);
  }
};

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
template <int V, int E, typename F, typename Walk, int A>
__device__ __forceinline__ void compute_along(
    const Walk& walk, const F& functor, unsigned int size, const Strides<A, F::STRIDED, unsigned int>& strides,
    const Axes<A>& axes) {
  using T = typename F::Element;
  constexpr int N = F::STRIDED;
  VectorWord<T, V> dense[E];
  Along<T, V> along[E][N];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if constexpr (F::READ > N) dense[i] = fetch<T, V>(functor.operand(N) + min(walk.at(i), size - V));
    const auto offsets = walk.offsets(i, size, axes, strides);
#pragma unroll
    for (int n = 0; n < N; ++n) along[i][n].fetch_from(functor.operand(n) + offsets.at[n], strides.at[0][n]);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    Vector<T, V> operands[F::READ];
#pragma unroll
    for (int n = 0; n < N; ++n) operands[n] = along[i][n].get(strides.at[0][n]);
    if constexpr (F::READ > N) operands[N] = as_vector<T, V>(dense[i]);
    // one address with constant offsets, stored by a predicate: parameters that are read after a branch arrive late
    functor.compute(operands, [&](T* to, const Vector<T, V>& result, bool wanted) {
      store_where<T, V, V * E == 1>(to + walk.at(0) + i * Walk::STEP, result, walk.at(i) < size && wanted);
    });
  }
}

// lerp_broadcast: a thread computes E vectors of V elements, a block apart, for operands that broadcast in any pattern.
// Layout   results of F and operands of their shape flat; the STRIDED ones by Strides over the axes of the results, at most A
// Grid     size / V / E / flat_threads<V * E>()      Block  flat_threads<V * E>()
// Needs    rows of the innermost axis are whole, aligned vectors in results and all operands that are not repeated along it;
//          fewer than 2^31 elements
// Writes   the results of F[size]
// Why      no vector lies in two rows: one index computation serves V elements, without branches, so that all loads are in
//          flight. The arguments of two axes are within 64 bytes: other lines arrive later
template <typename F, int V, int E, int A>
__global__ void __launch_bounds__(flat_threads<V * E>()) lerp_broadcast(
    const typename F::Element* __restrict__ first, typename F::Second second, typename F::Element* __restrict__ third,
    typename F::Fourth fourth, unsigned int size, Strides<A, F::STRIDED, unsigned int> strides, Axes<A> axes) {
  compute_along<V, E>(BlockWalk<V, E>(), F{first, second, third, fourth}, size, strides, axes);
}

// lerp_grouped: a thread computes E vectors of V elements for operands of many axes; those of a warp follow one another.
// Layout   as in lerp_broadcast, by relative strides over up to AXES axes; group: the product of the innermost K
// Grid     size / V / E / FLAT_THREADS      Block  FLAT_THREADS
// Needs    as lerp_broadcast; more than K axes; group >= 32 V E      Writes  as lerp_broadcast
// Why      a warp is in two groups at most: one walk over the outer axes serves E vectors, which walk K axes each
template <typename F, int V, int E, int K>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_grouped(
    const typename F::Element* __restrict__ first, typename F::Second second, typename F::Element* __restrict__ third,
    typename F::Fourth fourth, unsigned int size, Strides<AXES, F::STRIDED, unsigned int> strides, Axes<> axes,
    Divisor group) {
  const GroupWalk<V, E, K, F::STRIDED> walk(size, axes, strides, group);
  compute_along<V, E>(walk, F{first, second, third, fourth}, size, strides, axes);
}

// lerp_split: a thread computes a vector of V elements, which may lie in two rows or more.
// Layout   as in lerp_broadcast; operands of the results' shape may be STRIDED too, by a bit of `dense` for each
// Grid     size / V / FLAT_THREADS      Block  FLAT_THREADS
// Needs    results and dense operands aligned; fewer than 2^31 elements      Writes  as lerp_broadcast
// Why      a vector spans two rows at most unless rows are shorter: two index computations serve V elements
template <typename F, int V>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_split(
    const typename F::Element* __restrict__ first, typename F::Second second, typename F::Element* __restrict__ third,
    typename F::Fourth fourth, unsigned int size, Strides<AXES, F::STRIDED, unsigned int> strides, Axes<> axes, int dense) {
  using T = typename F::Element;
  constexpr int N = F::STRIDED;
  const F functor{first, second, third, fourth};
  const unsigned int at = (blockIdx.x * FLAT_THREADS + threadIdx.x) * V;
  if (at >= size) return;
  const unsigned int count = min(size - at, static_cast<unsigned int>(V));
  Vector<T, V> operands[F::READ];
  if (count < V || axes.length[0].value < V) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int index = at + min(i, count - 1);
      if constexpr (F::READ > N) operands[N].at[i] = functor.operand(N)[index];
      const auto offsets = strided_offsets(index, axes, strides);
#pragma unroll
      for (int n = 0; n < N; ++n) operands[n].at[i] = functor.operand(n)[offsets.at[n]];
    }
  } else {
    if constexpr (F::READ > N) operands[N] = load<T, V>(functor.operand(N) + at);
    const RowSplit<V, N> split(at, axes, strides);
#pragma unroll
    for (int n = 0; n < N; ++n) operands[n] = split.load(functor.operand(n), n, dense >> n & 1, strides);
  }
  functor.compute(operands, [&](T* to, const Vector<T, V>& result, bool wanted) {
    if (wanted) store_some<T, V>(to + at, result, count);
  });
}
