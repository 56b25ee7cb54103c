// deformable_conv_grad, channels last: the gradients of offset, mask and x from the columns' gradient (pixels of all
// images, taps, channels), the latter by 16-byte atomic additions; also the columns for the filter's gradient.

#include "lines.cuh"
#include "sampling.cuh"

DEFINE_Plan;  // of cuda_spread.py

// prepare_lines: blocks transpose x and the output's gradient to lines, zero the gradient of x and reorder the filter.
// Layout   x, output gradient (N, C, H, W), filter (rows, channels, taps)
// Grid     pieces of x + pieces of the output gradient + rows            Block  256
// Writes   lines, out_lines, line_grad, reordered filter (rows, taps, channels)
template <typename T>
__global__ void __launch_bounds__(256) prepare_lines(
    const T* __restrict__ x, const T* __restrict__ out_grad, const T* __restrict__ filter, T* __restrict__ lines,
    T* __restrict__ out_lines, T* __restrict__ reordered, float* __restrict__ line_grad, const __grid_constant__ Plan plan) {
  const int block = blockIdx.x, row = block - plan.pieces - plan.out_pieces;
  if (row < 0) {
    const bool of_x = block < plan.pieces;
    to_channels_last(of_x ? x : out_grad, of_x ? lines : out_lines, of_x ? line_grad : nullptr, of_x ? plan.lines : plan.out_lines,
         of_x ? block : block - plan.pieces);
    return;
  }
  const int length = plan.conv.taps * plan.group_depth;
  const T* const from = filter + static_cast<long long>(row) * plan.group_channels * plan.conv.taps;
  for (int i = threadIdx.x; i < length; i += 256) {
    const int tap = i / plan.group_depth;
    const int channel = given_channel(i - tap * plan.group_depth, plan.lines.segment, plan.lines.padded);
    reordered[static_cast<long long>(row) * length + i] = channel < 0 ? T(0.0f) : from[channel * plan.conv.taps + tap];
  }
}

// store_gradients: blocks transpose the gradients of x and of the filter back.
// Layout   line_grad as lines, reordered (rows, taps, channels)     Grid  pieces of x + rows     Block  256
// Writes   x_grad, filter_grad, each unless null
template <typename T>
__global__ void __launch_bounds__(256) store_gradients(
    const float* __restrict__ line_grad, const T* __restrict__ reordered, T* __restrict__ x_grad,
    T* __restrict__ filter_grad, const __grid_constant__ Plan plan) {
  const int row = static_cast<int>(blockIdx.x) - plan.pieces;
  if (row < 0) {
    if (x_grad != nullptr) to_channels_first(line_grad, x_grad, plan.lines, blockIdx.x);
    return;
  }
  if (filter_grad == nullptr) return;
  const int length = plan.conv.taps * plan.group_channels, padded = plan.lines.padded.value;
  const T* const from = reordered + static_cast<long long>(row) * plan.conv.taps * plan.group_depth;
  for (int i = threadIdx.x; i < length; i += 256) {
    const int channel = i / plan.conv.taps, tap = i - channel * plan.conv.taps;
    const int segment = channel / plan.lines.segment, inner = channel - segment * plan.lines.segment;
    filter_grad[static_cast<long long>(row) * length + i] = from[tap * plan.group_depth + segment * padded + inner];
  }
}

__device__ __forceinline__ void add(float* to, const float4& value) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), value);
#else
  atomicAdd(to, value.x), atomicAdd(to + 1, value.y), atomicAdd(to + 2, value.z), atomicAdd(to + 3, value.w);
#endif
}

// A lane's part of a sample: V channels and their contribution to the sums over channels.
template <typename T>
struct LaneSample {
  static constexpr int V = 16 / sizeof(T);
  float given[V], corners[4][V];

  __device__ __forceinline__ void read(const T* lines, const float* gradient, const Sample<float>& sample, int depth) {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(gradient + i);
      given[i] = four.x, given[i + 1] = four.y, given[i + 2] = four.z, given[i + 3] = four.w;
    }
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      Vector<T, V> vector = {};
      if (sample.at[corner] >= 0) vector = load<T, V>(lines + static_cast<long long>(sample.at[corner]) * depth);
#pragma unroll
      for (int i = 0; i < V; ++i) corners[corner][i] = sample.at[corner] >= 0 ? widen(vector.at[i]) : 0.0f;
    }
  }

  // Adds to the sums for h, w and mask; computes the columns.
  __device__ __forceinline__ Vector<T, V> sum(float (&sums)[3], const Sample<float>& sample) const {
    Vector<T, V> column;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float upper = corners[1][i] - corners[0][i], lower = corners[3][i] - corners[2][i];
      const float left = corners[2][i] - corners[0][i], right = corners[3][i] - corners[1][i];
      const float top = corners[0][i] + sample.lw * upper, bottom = corners[2][i] + sample.lw * lower;
      const float sampled = top + sample.lh * (bottom - top);
      sums[0] += given[i] * (left + sample.lw * (right - left));
      sums[1] += given[i] * (upper + sample.lh * (lower - upper));
      sums[2] += given[i] * sampled;
      column.at[i] = narrow<T>(sampled * sample.mask);
    }
    return column;
  }

  __device__ __forceinline__ void scatter(float* line_grad, const Sample<float>& sample, int depth) const {
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      if (sample.at[corner] < 0) continue;
      const float weight = sample.weight(corner) * sample.mask;
      float* const to = line_grad + static_cast<long long>(sample.at[corner]) * depth;
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        add(to + i, make_float4(given[i] * weight, given[i + 1] * weight, given[i + 2] * weight, given[i + 3] * weight));
      }
    }
  }
};

// spread: lanes share a sample; each adds 16 bytes of channels to the corners' gradients.
// Layout   column gradient (pixels of all images, taps, channels), lines      Grid  tiles of pixels · taps × dg
// Block    256            Writes  gradients of offset and mask, line_grad by atomics, columns (may be the gradient itself),
//                                 each unless null
// Why      samples and additions of one pixel are contiguous
template <typename T>
__global__ void __launch_bounds__(256, 2) spread(
    const T* __restrict__ lines, const T* __restrict__ offset, const T* __restrict__ mask, const float* gradient,
    T* columns, float* __restrict__ line_grad, T* __restrict__ offset_grad, T* __restrict__ mask_grad,
    const __grid_constant__ Plan plan) {
  constexpr int V = LaneSample<T>::V;
  const Conv& conv = plan.conv;
  const int tile = blockIdx.x / conv.taps, tap = blockIdx.x - tile * conv.taps, group = blockIdx.y;
  const int total = plan.images * conv.pixels.value, lane = threadIdx.x & (plan.lanes - 1);
  const int index = tile * (256 / plan.lanes) + threadIdx.x / plan.lanes, place = min(index, total - 1);
  const int image = quotient(place, conv.pixels), pixel = remainder(place, image, conv.pixels);
  const Sample<float> sample = find(conv, offset, mask, image, group, tap, pixel);
  const int depth = plan.lines.depth, first = group * plan.width;
  const long long here = (static_cast<long long>(place) * conv.taps + tap) * depth + first;
  const long long image_at = static_cast<long long>(image) * plan.lines.area * depth + first;
  float sums[3] = {};
  for (int channel = index < total ? lane * V : plan.width; channel < plan.width; channel += plan.lanes * V) {
    LaneSample<T> part;
    part.read(lines + image_at + channel, gradient + here + channel, sample, depth);
    const Vector<T, V> column = part.sum(sums, sample);
    if (columns != nullptr) store<T, V>(columns + here + channel, column);
    if (line_grad != nullptr) part.scatter(line_grad + image_at + channel, sample, depth);
  }
  for (int other = 1; other < plan.lanes; other *= 2) {
#pragma unroll
    for (int i = 0; i < 3; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], other);
  }
  if (lane != 0 || index >= total) return;
  const int groups = conv.channels / conv.per_group, pixels = conv.pixels.value;
  const long long entry = static_cast<long long>(image * groups + group) * conv.taps + tap;
  if (offset_grad != nullptr) {
    offset_grad[2 * entry * pixels + pixel] = narrow<T>(sums[0] * sample.mask);
    offset_grad[(2 * entry + 1) * pixels + pixel] = narrow<T>(sums[1] * sample.mask);
  }
  if (mask_grad != nullptr) mask_grad[entry * pixels + pixel] = narrow<T>(sums[2]);
}
