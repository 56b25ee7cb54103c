// deformable_conv and its gradient with a column buffer (N, C, taps, P).
//
// T is the tensors' type, A the accumulating one. A thread processes one sample (pixel and tap) of all channels of a
// chunk, so that the sample's position is computed once.

#include "add_splits.cuh"
#include "sampling.cuh"

constexpr unsigned int FULL = 0xffffffffu;

template <typename T, typename A>
__device__ __forceinline__ void read(A (&corners)[4], const T* plane, const Sample<A>& sample) {
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    corners[corner] = sample.at[corner] < 0 ? A(0) : A(widen(plane[sample.at[corner]]));
  }
}

template <typename A>
__device__ __forceinline__ A blend(const A (&corners)[4], const Sample<A>& sample) {
  const A top = corners[0] + sample.lw * (corners[1] - corners[0]);
  const A bottom = corners[2] + sample.lw * (corners[3] - corners[2]);
  return top + sample.lh * (bottom - top);
}

// Sample and channels of this thread. Grid: pixels of all images × taps × chunks of channels.
struct SampleRange {
  int image, pixel, tap, group, channel, end;
};

__device__ __forceinline__ bool own(SampleRange& part, const Conv& conv, int images, int chunk) {
  const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
  part.image = quotient(index, conv.pixels);
  part.pixel = remainder(index, part.image, conv.pixels);
  part.tap = blockIdx.y;
  const int chunks = (conv.per_group + chunk - 1) / chunk;
  part.group = blockIdx.z / chunks;
  const int first = blockIdx.z % chunks * chunk;
  part.channel = part.group * conv.per_group + first;
  part.end = part.group * conv.per_group + min(first + chunk, conv.per_group);
  return part.image < images;
}

// unfold: each thread samples the channels of a chunk at one pixel and tap.
// Layout   x (N, C, H, W), offset, mask (null: 1)      Grid  pixels / 256 × taps × chunks       Block  256
// Writes   column (N, C, taps, P)
// Why      a sample's position is computed once for all channels of a chunk
template <typename T>
__global__ void __launch_bounds__(256, 4) unfold(
    const T* __restrict__ x, const T* __restrict__ offset, const T* __restrict__ mask, T* __restrict__ column,
    int images, int chunk, Conv conv) {
  using A = Wide<T>;
  SampleRange part;
  if (!own(part, conv, images, chunk)) return;
  const Sample<A> sample = find(conv, offset, mask, part.image, part.group, part.tap, part.pixel);
  const int area = conv.height * conv.width, pixels = conv.pixels.value;
  const long long first = static_cast<long long>(part.image) * conv.channels + part.channel;
  const T* plane = x + first * area;
  T* to = column + (first * conv.taps + part.tap) * pixels + part.pixel;
  const long long step = static_cast<long long>(conv.taps) * pixels;
#pragma unroll 4
  for (int channel = part.channel; channel < part.end; ++channel, plane += area, to += step) {
    A corners[4];
    read(corners, plane, sample);
    *to = narrow<T>(blend(corners, sample) * sample.mask);
  }
}

// The columns' gradient as a product of the filter (Co, C / groups, taps) and the output's gradient (N, Co, P).
template <typename T>
struct Product;
DEFINE_Product;  // of cuda.py

template <typename T>
__device__ __forceinline__ Wide<T> product_at(
    const Product<T>& of, const Conv& conv, int image, int channel, int tap, int pixel) {
  const int group = quotient(channel, of.channels), inner = remainder(channel, group, of.channels);
  const int pixels = conv.pixels.value, depth = of.channels.value * conv.taps;
  const T* grad = of.out_grad + (static_cast<long long>(image) * of.outs + group * of.rows) * pixels + pixel;
  const T* weight = of.filter + static_cast<long long>(group * of.rows) * depth + inner * conv.taps + tap;
  constexpr int BATCH = 4;  // loads of each factor in flight
  Wide<T> sum = 0;
  for (int first = 0; first < of.rows; first += BATCH, grad += BATCH * pixels, weight += BATCH * depth) {
    VectorWord<T, 1> words[2][BATCH] = {};
#pragma unroll
    for (int row = 0; row < BATCH; ++row) {
      if (first + row >= of.rows) continue;
      words[0][row] = fetch<T, 1>(grad + static_cast<long long>(row) * pixels);
      words[1][row] = fetch<T, 1>(weight + row * depth);
    }
#pragma unroll
    for (int row = 0; row < BATCH; ++row) {
      sum += widen(as_vector<T, 1>(words[0][row]).at[0]) * widen(as_vector<T, 1>(words[1][row]).at[0]);
    }
  }
  return sum;
}

// fold: one pass over the columns' gradient, for all gradients except the filter's.
// Layout   column gradient (N, C, taps, P), or with MULTIPLIES its factors; x, offset, mask
// Grid     pixels / 256 × taps × chunks     Block  256
// Writes   columns (unless null; may be the gradient's own buffer), partial sums of offset and mask gradients
//          (chunks, N, dg, taps, 3, P), and the gradient of x by atomics
// Why      every sample's position and corners are read once
template <typename T, typename C, bool MULTIPLIES>
__global__ void __launch_bounds__(256, sizeof(Wide<T>) == 8 ? 2 : 4) fold(
    const T* __restrict__ x, const T* __restrict__ offset, const T* __restrict__ mask, const Wide<T>* column_grad,
    C* column, Wide<T>* __restrict__ partial, Wide<T>* __restrict__ x_grad, int images, int chunk, Conv conv,
    const __grid_constant__ Product<T> product) {
  using A = Wide<T>;
  SampleRange part;
  if (!own(part, conv, images, chunk)) return;
  const Sample<A> sample = find(conv, offset, mask, part.image, part.group, part.tap, part.pixel);
  const int area = conv.height * conv.width, pixels = conv.pixels.value;
  const int groups = conv.channels / conv.per_group, chunks = gridDim.z / groups;
  const long long first = static_cast<long long>(part.image) * conv.channels + part.channel;
  const long long step = static_cast<long long>(conv.taps) * pixels;
  long long at = (first * conv.taps + part.tap) * pixels + part.pixel;
  long long plane = first * area;
  A slope_h = 0, slope_w = 0, weight = 0;
#pragma unroll 2
  for (int channel = part.channel; channel < part.end; ++channel, plane += area, at += step) {
    const A given =
        MULTIPLIES ? product_at(product, conv, part.image, channel, part.tap, part.pixel) : column_grad[at];
    A corners[4];
    read(corners, x + plane, sample);
    const A sampled = blend(corners, sample);
    weight += given * sampled;
    const A upper = corners[1] - corners[0], lower = corners[3] - corners[2];
    slope_w += given * (upper + sample.lh * (lower - upper));
    const A left = corners[2] - corners[0], right = corners[3] - corners[1];
    slope_h += given * (left + sample.lw * (right - left));
    if (column != nullptr) column[at] = narrow<C>(sampled * sample.mask);
    if (x_grad != nullptr) {
      const A moved = given * sample.mask;
#pragma unroll
      for (int corner = 0; corner < 4; ++corner) {
        if (sample.at[corner] >= 0) atomicAdd(x_grad + plane + sample.at[corner], moved * sample.weight(corner));
      }
    }
  }
  if (partial == nullptr) return;
  const long long entry =
      ((static_cast<long long>(blockIdx.z % chunks) * images + part.image) * groups + part.group) * conv.taps + part.tap;
  A* const to = partial + 3 * entry * pixels + part.pixel;
  to[0] = slope_h * sample.mask;
  to[pixels] = slope_w * sample.mask;
  to[2 * pixels] = weight;
}

// fold_in_order: a warp accumulates one plane of the gradient of x; colliding lanes are added in order.
// Layout   column gradient (N, C, taps, P)      Grid  planes / warps      Block  256      Writes  x gradient (N, C, H, W)
// Why      the order of additions is fixed, without atomics
template <typename T>
__global__ void __launch_bounds__(256, 4) fold_in_order(
    const T* __restrict__ offset, const T* __restrict__ mask, const Wide<T>* __restrict__ column_grad,
    Wide<T>* __restrict__ x_grad, int planes, Conv conv) {
  using A = Wide<T>;
  const int plane = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (plane >= planes) return;
  const int image = plane / conv.channels, group = (plane - image * conv.channels) / conv.per_group;
  const int pixels = conv.pixels.value;
  A* const to = x_grad + static_cast<long long>(plane) * conv.height * conv.width;
  for (int tap = 0; tap < conv.taps; ++tap) {
    const A* const from = column_grad + (static_cast<long long>(plane) * conv.taps + tap) * pixels;
    for (int base = 0; base < pixels; base += 32) {
      const int pixel = base + lane;
      const Sample<A> sample = find(conv, offset, mask, image, group, tap, min(pixel, pixels - 1));
      const A moved = pixel < pixels ? from[pixel] * sample.mask : A(0);
#pragma unroll
      for (int corner = 0; corner < 4; ++corner) {
        const int at = pixel < pixels ? sample.at[corner] : -1;
        const A given = moved * sample.weight(corner);
        unsigned int others = __match_any_sync(FULL, at);
        const bool leads = at >= 0 && __ffs(others) - 1 == lane;
        A total = 0;
        while (__any_sync(FULL, others != 0)) {
          const int other = others == 0 ? lane : __ffs(others) - 1;
          const A value = __shfl_sync(FULL, given, other);
          if (others != 0) total += value;
          others &= others - 1;
        }
        if (leads) to[at] += total;
        __syncwarp();
      }
    }
  }
}

// gather: threads add the partial sums over chunks of channels.
// Layout   partial (chunks, N, dg, taps, 3, P)      Grid  any      Block  256
// Writes   gradients of offset (N, dg, taps, 2, P) and mask (N, dg, taps, P), each unless null
template <typename T>
__global__ void __launch_bounds__(256, 4) gather(
    const Wide<T>* __restrict__ partial, T* __restrict__ offset_grad, T* __restrict__ mask_grad, int size, int chunks,
    Divisor pixels) {
  using A = Wide<T>;
  const int index = blockIdx.x * 256 + threadIdx.x;
  if (index >= size) return;
  const long long entry = quotient(index, pixels), pixel = remainder(index, entry, pixels), length = pixels.value;
  A sums[3] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
    for (int part = 0; part < 3; ++part) sums[part] += partial[3LL * size * chunk + (3 * entry + part) * length + pixel];
  }
  if (offset_grad != nullptr) {
    offset_grad[2 * entry * length + pixel] = narrow<T>(sums[0]);
    offset_grad[(2 * entry + 1) * length + pixel] = narrow<T>(sums[1]);
  }
  if (mask_grad != nullptr) mask_grad[index] = narrow<T>(sums[2]);
}

// filter_grad: a block adds up the products of one row of the columns and up to ROWS output channels of its group.
// Layout   output gradient (N, Co, P), columns (N, C taps, P)      Grid  C taps × splits × blocks of rows      Block  256
// Writes   partial (splits, Co, C / groups taps)
// Why      few channels would leave most of a matrix product's tile empty
template <typename T, typename C, int ROWS>
__global__ void __launch_bounds__(256) filter_grad(
    const T* __restrict__ out_grad, const C* __restrict__ columns, Wide<T>* __restrict__ partial, int size, int share,
    int outs, int rows, Divisor depth, Divisor pixels) {
  using A = Wide<T>;
  __shared__ A sums[ROWS][8];
  const int column = blockIdx.x, group = quotient(column, depth), first = blockIdx.z * ROWS, length = pixels.value;
  const int end = min((static_cast<int>(blockIdx.y) + 1) * share, size);
  A sum[ROWS] = {};
#pragma unroll 2
  for (int index = blockIdx.y * share + threadIdx.x; index < end; index += 256) {
    const int image = quotient(index, pixels), pixel = remainder(index, image, pixels);
    const C column_value = columns[(static_cast<long long>(image) * gridDim.x + column) * length + pixel];
    const T* const from = out_grad + (static_cast<long long>(image) * outs + group * rows + first) * length + pixel;
    VectorWord<T, 1> words[ROWS] = {};
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      if (first + row < rows) words[row] = fetch<T, 1>(from + static_cast<long long>(row) * length);
    }
#pragma unroll
    for (int row = 0; row < ROWS; ++row) sum[row] += widen(column_value) * widen(as_vector<T, 1>(words[row]).at[0]);
  }
#pragma unroll
  for (int row = 0; row < ROWS; ++row) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum[row] += __shfl_xor_sync(FULL, sum[row], lane);
    if (threadIdx.x % 32 == 0) sums[row][threadIdx.x / 32] = sum[row];
  }
  __syncthreads();
  const int row = threadIdx.x;
  if (row >= ROWS || first + row >= rows) return;
  A total = 0;
#pragma unroll
  for (int warp = 0; warp < 8; ++warp) total += sums[row][warp];
  const long long to = static_cast<long long>(blockIdx.y) * outs + group * rows + first + row;
  partial[to * depth.value + remainder(column, group, depth)] = total;
}
