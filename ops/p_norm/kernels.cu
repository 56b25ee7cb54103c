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
  Pack<T, V> pack = load<T, V>(x + at);
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

// (a, r1, c) in one sweep over packs along c, of which a row has few: y and dy come from the first cache.
constexpr int SWEEP_THREADS = 128;

template <typename T, int V, int SLOPE>
__global__ void __launch_bounds__(SWEEP_THREADS) grad_sweep(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    unsigned int size, Divisor packs, Divisor rows) {
  using A = Wide<T>;
  const unsigned int pack = blockIdx.x * SWEEP_THREADS + threadIdx.x;
  if (pack >= size) return;
  const unsigned int row = quotient(pack, packs), column = remainder(pack, row, packs);
  const long long at = static_cast<long long>(pack) * V;
  const long long result = (static_cast<long long>(quotient(row, rows)) * packs.value + column) * V;
  Pack<T, V> values = load<T, V>(x + at);
  const Pack<T, V> norms = load<T, V>(y + result), grads = load<T, V>(dy + result);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const Scale<A> by = scale_of<A, SLOPE>(widen(norms.at[i]), widen(grads.at[i]));
    values.at[i] = narrow<T>(slope<A, SLOPE>(widen(values.at[i]), by, q));
  }
  store<T, V>(dx + at, values);
}

// Every pack along a thread's columns with its place and index, in order, some of them under way at once.
template <typename T, int V, typename Turn>
__device__ __forceinline__ void along(const T* x, Columns<V>& at, const Turn& turn) {
  const int rows = blockDim.y;
  if (at.r2 != 1) {
#pragma unroll 1
    for (; at.index < at.end; at.index += rows) {
      const long long place = at.next();
      turn(load<T, V>(x + place), place, at.index);
    }
    return;
  }
  constexpr int TOGETHER = under_way<T>();
  using W = typename Word<V * sizeof(T)>::type;  // packs stay words until they are used
  for (; at.index < at.end; at.index += TOGETHER * rows) {
    W words[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      if (at.index + j * rows < at.end) words[j] = *reinterpret_cast<const W*>(x + at.place + j * at.step);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      if (at.index + j * rows >= at.end) continue;
      turn(*reinterpret_cast<const Pack<T, V>*>(&words[j]), at.place + j * at.step, at.index + j * rows);
    }
    at.place += TOGETHER * at.step;
  }
}

// The general layout, as Columns says: a thread keeps what its columns' norms give.
template <typename T, int V, int SLOPE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    Layout layout) {
  using A = Wide<T>;
  Columns<V> at(layout, blockIdx.y);
  if (!at.ours) return;
  const Pack<T, V> norms = load<T, V>(y + at.result), grads = load<T, V>(dy + at.result);
  Scale<A> by[V];
#pragma unroll
  for (int i = 0; i < V; ++i) by[i] = scale_of<A, SLOPE>(widen(norms.at[i]), widen(grads.at[i]));
  along<T, V>(x, at, [&](Pack<T, V> pack, long long place, long long) {
#pragma unroll
    for (int i = 0; i < V; ++i) pack.at[i] = narrow<T>(slope<A, SLOPE>(widen(pack.at[i]), by[i], q));
    store_streaming<T, V>(dx + place, pack);
  });
}

template <typename A>
__device__ __forceinline__ bool ties(A x, A y) {  // NaN ties with a NaN norm
  return magnitude(x) == y || x != x;
}

template <typename A>
struct Shares {  // of one norm: what an element that ties gets, and what any other
  A norm, tie, other;
  Shares() = default;
  __device__ __forceinline__ Shares(A y, A dy, long long count)
      : norm(y), tie(dy / static_cast<A>(count > 0 ? count : 1)), other(A(0) * dy) {}
  __device__ __forceinline__ A of(A x) const {
    if (x != x) return x;
    if (magnitude(x) != norm) return other;
    return x > A(0) ? tie : (x < A(0) ? -tie : A(0) * tie);
  }
};

// A row of x and dx in packs that are aligned in memory: elements [low, high) past `from` are its own. x and dx lie
// `shift` elements past an aligned address. I: an integer that holds the row's length.
template <typename T, int V, typename I>
struct Row {
  const T* from;
  T* to;
  I low, high, packs;

  __device__ __forceinline__ Row(const T* x, T* dx, long long row, long long length, int shift) {
    const long long begin = row * length, first = (begin + shift) / V * V - shift;
    from = x + first;
    to = dx + first;
    low = static_cast<I>(begin - first);
    high = low + static_cast<I>(length);
    packs = (high + V - 1) / V;
  }

  __device__ __forceinline__ bool whole(I pack) const { return pack * V >= low && pack * V + V <= high; }
  __device__ __forceinline__ bool ours(I at) const { return at >= low && at < high; }
  __device__ __forceinline__ Pack<T, V> load(I pack) const { return ::load<T, V>(from + pack * V); }

  __device__ __forceinline__ int count(const Pack<T, V>& loaded, I pack, Wide<T> norm) const {
    int found = 0;
    if (whole(pack)) {
#pragma unroll
      for (int i = 0; i < V; ++i) found += ties(widen(loaded.at[i]), norm);
      return found;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) found += ours(pack * V + i) && ties(widen(loaded.at[i]), norm);
    return found;
  }

  __device__ __forceinline__ void write(Pack<T, V> loaded, I pack, const Shares<Wide<T>>& shares) const {
#pragma unroll
    for (int i = 0; i < V; ++i) loaded.at[i] = narrow<T>(shares.of(widen(loaded.at[i])));
    if (whole(pack)) {
      store<T, V>(to + pack * V, loaded);
      return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (ours(pack * V + i)) to[pack * V + i] = loaded.at[i];
    }
  }
};

template <typename C>
__device__ __forceinline__ C block_sum(C count) {
  __shared__ C counts[GRAD_THREADS / 32];
  for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(EVERY_LANE, count, step);
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
  __syncthreads();
  count = 0;
  for (int warp = 0; warp < GRAD_THREADS / 32; ++warp) count += counts[warp];
  return count;
}

// porder +-inf, (rows, length): `lanes` threads per row count the ties, then write. What a thread does not hold
// is read again from the cache.
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_extreme_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long rows,
    int length, int shift, int lanes) {
  using A = Wide<T>;
  constexpr int HELD = 4;
  const long long row = static_cast<long long>(blockIdx.x) * (GRAD_THREADS / lanes) + threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const bool ours = row < rows;
  const Row<T, V, int> at(x, dx, ours ? row : 0, ours ? length : 0, shift);
  const A norm = ours ? widen(y[row]) : A(0), grad = ours ? widen(dy[row]) : A(0);
  Pack<T, V> held[HELD];
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    if (lane + h * lanes < at.packs) held[h] = at.load(lane + h * lanes);
  }
  int count = 0;
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    if (lane + h * lanes < at.packs) count += at.count(held[h], lane + h * lanes, norm);
  }
  for (int pack = lane + HELD * lanes; pack < at.packs; pack += lanes) count += at.count(at.load(pack), pack, norm);
  if (lanes > 32) {
    count = block_sum(count);
  } else {
    for (int step = lanes / 2; step > 0; step /= 2) count += __shfl_xor_sync(EVERY_LANE, count, step);
  }
  const Shares<A> shares(norm, grad, count);
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    if (lane + h * lanes < at.packs) at.write(held[h], lane + h * lanes, shares);
  }
  for (int pack = lane + HELD * lanes; pack < at.packs; pack += lanes) at.write(at.load(pack), pack, shares);
}

// Where few rows or columns must be shared among blocks, counting and writing are two launches of one kernel: ties
// are counted into `partials`, of which a result has one for each split. With one split, BOTH is one launch.
enum Phase { BOTH, TALLY, WRITE };

// porder +-inf, a row shared by gridDim.y blocks. partials (rows, splits). The last part is written first: it is
// still in the cache.
template <typename T, int V, int PHASE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_extreme_long(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift, int* partials) {
  using A = Wide<T>;
  const long long row = blockIdx.x;
  const Row<T, V, long long> at(x, dx, row, length, shift);
  const int splits = gridDim.y, split = PHASE == WRITE ? splits - 1 - blockIdx.y : blockIdx.y;
  const long long first = at.packs * split / splits + threadIdx.x, end = at.packs * (split + 1) / splits;
  const A norm = widen(y[row]);
  if constexpr (PHASE == TALLY) {
    int mine = 0;
#pragma unroll 4
    for (long long pack = first; pack < end; pack += GRAD_THREADS) mine += at.count(at.load(pack), pack, norm);
    mine = block_sum(mine);
    if (threadIdx.x == 0) partials[row * splits + split] = mine;
  } else {
    long long mine = 0;
    for (int other = threadIdx.x; other < splits; other += GRAD_THREADS) mine += partials[row * splits + other];
    const Shares<A> shares(norm, widen(dy[row]), block_sum(mine));
#pragma unroll 4
    for (long long pack = first; pack < end; pack += GRAD_THREADS) at.write(at.load(pack), pack, shares);
  }
}

// porder +-inf, general layout, as Columns says. partials (splits, a b c).
template <typename T, int V, int PHASE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_extreme_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout,
    int* partials) {
  using A = Wide<T>;
  __shared__ int slots[GRAD_THREADS * V];
  const int splits = gridDim.y, split = PHASE == WRITE ? splits - 1 - blockIdx.y : blockIdx.y;
  const int rows = blockDim.y, threads = blockDim.x * rows, slot = threadIdx.y * blockDim.x + threadIdx.x;
  const Columns<V> start(layout, split);
  const long long result = start.result;
  const bool ours = start.ours;
  const long long results = layout.a * layout.b * layout.c;
  Pack<T, V> norms, grads;
  if (ours) {
    norms = load<T, V>(y + result);
    grads = load<T, V>(dy + result);
  }
  long long count[V] = {};
  if constexpr (PHASE == WRITE) {
    for (int other = 0; ours && other < splits; ++other) {
#pragma unroll
      for (int i = 0; i < V; ++i) count[i] += partials[other * results + result + i];
    }
  } else {
    int mine[V] = {};
    Columns<V> at = start;
    at.each([&](long long place) { return load<T, V>(x + place); },
            [&](long long, const Pack<T, V>& loaded) {
#pragma unroll
              for (int i = 0; i < V; ++i) mine[i] += ties(widen(loaded.at[i]), widen(norms.at[i]));
            });
#pragma unroll
    for (int i = 0; i < V; ++i) slots[i * threads + slot] = mine[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      for (int row = 0; row < rows; ++row) count[i] += slots[i * threads + row * blockDim.x + threadIdx.x];
      if (PHASE == TALLY && threadIdx.y == 0 && ours) {
        partials[split * results + result + i] = static_cast<int>(count[i]);
      }
    }
  }
  if constexpr (PHASE != TALLY) {
    Shares<A> shares[V];
#pragma unroll
    for (int i = 0; i < V; ++i) shares[i] = Shares<A>(widen(norms.at[i]), widen(grads.at[i]), count[i]);
    Columns<V> at(layout, split);
    at.each([&](long long place) { return load<T, V>(x + place); },
            [&](long long place, Pack<T, V>& loaded) {
#pragma unroll
              for (int i = 0; i < V; ++i) loaded.at[i] = narrow<T>(shares[i].of(widen(loaded.at[i])));
              store<T, V>(dx + place, loaded);
            });
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
