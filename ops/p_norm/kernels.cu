// p_norm and its gradient. Modes name what is summed, or how the gradient scales.
#include "reduce.cuh"
#include "span.cuh"

enum Mode { COUNT, ABS, SQUARE, CUBE, POWER, LARGEST, SMALLEST };

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }
__device__ __forceinline__ float root(float x) {  // to one unit in the last place
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float reciprocal(float x) {  // likewise
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float accurate_power(float x, float p) { return powf(x, p); }
__device__ __forceinline__ double accurate_power(double x, double p) { return pow(x, p); }

// x^p for x >= 0. Its error is p (|log2 x| + 1) epsilons, which the op's bound counts.
__device__ __forceinline__ float power(float x, float p) {
  float logarithm, result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(p * logarithm));
  return result;
}
__device__ __forceinline__ double power(double x, double p) { return pow(x, p); }

template <typename A, int MODE>
struct Accumulator {
  using type = A;
};
template <typename A>
struct Accumulator<A, COUNT> {
  using type = unsigned long long;  // exact beyond 2^24
};

template <typename T, int MODE>
struct Norm {
  using Input = T;
  using Output = T;
  using A = Wide<T>;
  using Acc = typename Accumulator<A, MODE>::type;
  static constexpr bool TWO = false;
  A p, inverse;  // the order and its reciprocal

  static __device__ __forceinline__ A extreme() {  // infinite where that is neutral: |x|^p at p < 0, and a minimum
    return static_cast<A>(__int_as_float(0x7f800000));
  }
  __device__ __forceinline__ T neutral() const {
    return narrow<T>(MODE == SMALLEST || (MODE == POWER && p < A(0)) ? extreme() : A(0));
  }
  __device__ __forceinline__ Acc identity() const { return MODE == SMALLEST ? Acc(extreme()) : Acc(0); }
  __device__ __forceinline__ Acc take(Acc sum, T element, T) const {
    const A x = magnitude(widen(element));
    if constexpr (MODE == COUNT) return sum + (x != A(0));
    if constexpr (MODE == ABS) return sum + x;
    if constexpr (MODE == SQUARE) return sum + x * x;
    if constexpr (MODE == CUBE) return sum + x * x * x;
    if constexpr (MODE == POWER) return sum + power(x, p);
    return merge(sum, static_cast<Acc>(x));
  }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const {
    if constexpr (MODE == LARGEST) return b > a || b != b ? b : a;  // NaN stays
    if constexpr (MODE == SMALLEST) return b < a || b != b ? b : a;
    return a + b;
  }
  __device__ __forceinline__ T finish(Acc sum) const {
    if constexpr (MODE == COUNT || MODE == ABS || MODE == LARGEST || MODE == SMALLEST) return narrow<T>(static_cast<A>(sum));
    if constexpr (MODE == SQUARE) return narrow<T>(root(static_cast<A>(sum)));
    return narrow<T>(accurate_power(static_cast<A>(sum), inverse));
  }
};

// ---- gradient ------------------------------------------------------------------------------------------------------

enum Slope { FLAT, SIGN, LINEAR, QUADRATIC, ROOT, ROOT_CUBED, GENERAL, BELOW_ONE };  // porder 0, 1, 2, 3, 1.5, 2.5, >1, <1

// dy and 1 / y, with y brought into a range where neither it nor its reciprocal is subnormal.
template <typename A>
struct Scale {
  A before, inverse, dy;
};

template <typename A, int SLOPE>
__device__ __forceinline__ Scale<A> scale_of(A y, A dy) {
  if constexpr (SLOPE == FLAT || SLOPE == SIGN) return {A(1), A(1), dy};
  const A large = sizeof(A) == 4 ? A(1.8446744073709552e19) : A(1.157920892373162e77);  // 2^64, 2^256
  const A limit = sizeof(A) == 4 ? A(1e30) : A(1e300);
  const A before = y < A(1) / limit ? large : (y > limit ? A(1) / large : A(1));
  const A inverse = reciprocal(y * before);
  const bool zero = y == A(0) && SLOPE != BELOW_ONE;
  return {zero ? A(0) : before, zero ? A(0) : inverse, zero ? A(0) : dy};
}

template <typename A, int SLOPE>
__device__ __forceinline__ A slope(A x, const Scale<A>& by, A q) {
  if constexpr (SLOPE == FLAT) return A(0);
  const A sign = x != x ? x : (x > A(0) ? A(1) : (x < A(0) ? A(-1) : A(0)));
  if constexpr (SLOPE == SIGN) return sign * by.dy;
  const A ratio = x * by.before * by.inverse, size = magnitude(ratio);
  if constexpr (SLOPE == LINEAR) return ratio * by.dy;
  if constexpr (SLOPE == QUADRATIC) return ratio * size * by.dy;
  if constexpr (SLOPE == ROOT) return sign * root(size) * by.dy;
  if constexpr (SLOPE == ROOT_CUBED) return ratio * root(size) * by.dy;
  const A value = sign * power(size, q) * by.dy;
  return SLOPE == BELOW_ONE && x == A(0) ? A(0) : value;
}

constexpr int GRAD_THREADS = 256;

// (rows, length), fewer than 2^31 elements: flat packs, aligned in memory past `shift` elements.
// A pack may lie in two rows or more.
template <typename T, int V, int SLOPE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q, int size,
    int shift, Divisor length) {
  using A = Wide<T>;
  const int at = (blockIdx.x * GRAD_THREADS + threadIdx.x) * V - shift;
  if (at >= size) return;
  if (at < 0 || at + V > size) {
    for (int i = max(at, 0); i < min(at + V, size); ++i) {
      const unsigned int row = quotient(i, length);
      const Scale<A> by = scale_of<A, SLOPE>(widen(y[row]), widen(dy[row]));
      dx[i] = narrow<T>(slope<A, SLOPE>(widen(x[i]), by, q));
    }
    return;
  }
  Pack<T, V> pack = load_once<T, V>(x + at);
  unsigned int row = quotient(at, length);
  unsigned int left = (row + 1) * length.value - at;  // elements until the next row
  Scale<A> by = scale_of<A, SLOPE>(widen(y[row]), widen(dy[row]));
  if (left >= V) {
#pragma unroll
    for (int i = 0; i < V; ++i) pack.at[i] = narrow<T>(slope<A, SLOPE>(widen(pack.at[i]), by, q));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (left == 0) {
        row += 1;
        left = length.value;
        by = scale_of<A, SLOPE>(widen(y[row]), widen(dy[row]));
      }
      left -= 1;
      pack.at[i] = narrow<T>(slope<A, SLOPE>(widen(pack.at[i]), by, q));
    }
  }
  store<T, V>(dx + at, pack);
}

// The general layout (a, r1, b, r2, c) with packs along c.
template <typename T, int V, int SLOPE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    Layout layout) {
  using A = Wide<T>;
  const long long across = layout.c / V, packs = layout.a * layout.r1 * layout.b * layout.r2 * across;
  for (long long pack = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x; pack < packs;
       pack += static_cast<long long>(gridDim.x) * GRAD_THREADS) {
    const long long at = pack * V, outer = pack / across;
    const long long group = outer / layout.r2, b = group % layout.b, a = group / (layout.b * layout.r1);
    const long long result_at = (a * layout.b + b) * layout.c + (pack - outer * across) * V;
    const Pack<T, V> loaded = load<T, V>(x + at);
    const Pack<T, V> norms = load<T, V>(y + result_at), grads = load<T, V>(dy + result_at);
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Scale<A> by = scale_of<A, SLOPE>(widen(norms.at[i]), widen(grads.at[i]));
      result.at[i] = narrow<T>(slope<A, SLOPE>(widen(loaded.at[i]), by, q));
    }
    store_streaming<T, V>(dx + at, result);
  }
}

template <typename A>
__device__ __forceinline__ bool ties(A x, A y) {  // NaN ties with a NaN norm
  return magnitude(x) == y || x != x;
}

template <typename A>
__device__ __forceinline__ A share(A x, A y, A dy, long long count) {
  if (x != x) return x;
  if (magnitude(x) != y) return A(0) * dy;
  const A given = dy / static_cast<A>(count > 0 ? count : 1);
  return x > A(0) ? given : (x < A(0) ? -given : A(0) * given);
}

// porder +-inf, (rows, length): `lanes` threads per row count the ties, then write. The row is read
// again from the cache.
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_extreme_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long rows,
    long long length, int lanes) {
  using A = Wide<T>;
  __shared__ int counts[GRAD_THREADS / 32];
  const long long row = static_cast<long long>(blockIdx.x) * (GRAD_THREADS / lanes) + threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const bool ours = row < rows;
  constexpr int HELD = 16 / V > 4 ? 4 : 16 / V < 2 ? 2 : 16 / V;  // packs kept in registers
  Pack<T, V> held[HELD];
  const T* const from = x + row * length;
  const long long packs = length / V;
  const A norm = ours ? widen(y[row]) : A(0), grad = ours ? widen(dy[row]) : A(0);
  int count = 0;
  if (ours) {
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
      const long long pack = lane + static_cast<long long>(h) * lanes;
      if (pack < packs) held[h] = load<T, V>(from + pack * V);
    }
#pragma unroll
    for (int h = 0; h < HELD; ++h) {
      if (lane + static_cast<long long>(h) * lanes >= packs) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) count += ties(widen(held[h].at[i]), norm);
    }
    for (long long pack = lane + static_cast<long long>(HELD) * lanes; pack < packs; pack += lanes) {
      const Pack<T, V> loaded = load<T, V>(from + pack * V);
#pragma unroll
      for (int i = 0; i < V; ++i) count += ties(widen(loaded.at[i]), norm);
    }
  }
  for (int step = min(lanes, 32) / 2; step > 0; step /= 2) count += __shfl_xor_sync(EVERY_LANE, count, step);
  if (lanes > 32) {
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    count = 0;
    for (int warp = 0; warp < GRAD_THREADS / 32; ++warp) count += counts[warp];
  }
  if (!ours) return;
  T* const to = dx + row * length;
  const auto write = [&](long long pack, const Pack<T, V>& loaded) {
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(share(widen(loaded.at[i]), norm, grad, count));
    store_streaming<T, V>(to + pack * V, result);
  };
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    const long long pack = lane + static_cast<long long>(h) * lanes;
    if (pack < packs) write(pack, held[h]);
  }
  for (long long pack = lane + static_cast<long long>(HELD) * lanes; pack < packs; pack += lanes) {
    write(pack, load<T, V>(from + pack * V));
  }
}

// porder +-inf, general layout: a block of (32 columns, 8 rows) for each 32 results.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_extreme_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout) {
  using A = Wide<T>;
  __shared__ long long counts[8][32];
  const long long column = static_cast<long long>(blockIdx.x) * 32 + threadIdx.x;
  const long long a = blockIdx.y / layout.b, b = blockIdx.y % layout.b, length = layout.r1 * layout.r2;
  const long long result_at = static_cast<long long>(blockIdx.y) * layout.c + column;
  const bool ours = column < layout.c;
  const A norm = ours ? widen(y[result_at]) : A(0), grad = ours ? widen(dy[result_at]) : A(0);
  const auto place = [&](long long index) {
    const long long i1 = layout.r2 == 1 ? index : index / layout.r2, i2 = layout.r2 == 1 ? 0 : index % layout.r2;
    return (((a * layout.r1 + i1) * layout.b + b) * layout.r2 + i2) * layout.c + column;
  };
  long long count = 0;
  if (ours) {
    for (long long index = threadIdx.y; index < length; index += 8) count += ties(widen(x[place(index)]), norm);
  }
  counts[threadIdx.y][threadIdx.x] = count;
  __syncthreads();
  count = 0;
  for (int row = 0; row < 8; ++row) count += counts[row][threadIdx.x];
  if (!ours) return;
  for (long long index = threadIdx.y; index < length; index += 8) {
    const long long at = place(index);
    dx[at] = narrow<T>(share(widen(x[at]), norm, grad, count));
  }
}

// ---- the design document's plan, and one scalar kernel --------------------------------------------------------------

// y_part = dy y^-(p-1), on the reduced shape.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_part(
    const T* __restrict__ y, const T* __restrict__ dy, Wide<T>* __restrict__ part, Wide<T> q, long long size) {
  using A = Wide<T>;
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const A norm = widen(y[index]);
  part[index] = norm == A(0) ? A(0) : widen(dy[index]) * accurate_power(norm, -q);
}

// y_part spread over the whole tensor.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_spread(
    const Wide<T>* __restrict__ part, Wide<T>* __restrict__ spread, Layout layout, long long size) {
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const long long outer = index / layout.c, group = outer / layout.r2;
  const long long b = group % layout.b, a = group / (layout.b * layout.r1);
  spread[index] = part[(a * layout.b + b) * layout.c + index % layout.c];
}

// |x|^(p-1) sign(x) y_part.
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
