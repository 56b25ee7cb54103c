// direct: deformable_conv for few channels or few pixels, without tensor cores: samples stay in registers.
// Layout   x (N, C, H, W), offset, mask (null: 1), filter (Co, C / groups, taps)
// Grid     pixels of all images / threads per lane × blocks of groups · blocks of rows          Block  THREADS
// Writes   out (N, Co, Ho, Wo)
// Why      a position is computed once for all channels and groups of a thread; no tile is padded
//
// A thread sums ROWS output channels of up to GROUPS groups at one pixel. `lanes` threads share the depth of a pixel:
// `unit_lanes` of them the units, which are pairs of a tap and a segment, the others the channels of a segment. A segment
// has the channels that a group and a deformable group have in common.

#include "sampling.cuh"

DEFINE_Plan;  // of cuda_direct.py

// Groups and output channels of a block.
struct Part {
  int group, groups, row;

  __device__ __forceinline__ Part(const Plan& plan, int at_once, int rows) {
    const int row_block = blockIdx.y / plan.group_blocks, block = blockIdx.y - row_block * plan.group_blocks;
    const int owner = block / plan.owner_blocks, inner = (block - owner * plan.owner_blocks) * at_once;
    group = owner * plan.owner_groups + inner;
    groups = min(at_once, plan.owner_groups - inner);
    row = row_block * rows;
  }
};

// Copies the block's filter to shared memory as (groups, depth, rows), with zeros beyond.
template <int GROUPS, int ROWS, typename T>
__device__ __forceinline__ void load_filter(Wide<T>* weights, const T* filter, const Plan& plan, const Part& part) {
  constexpr int BATCH = 8;  // loads in flight
  const int depth = plan.depth.value, count = part.groups * ROWS * depth;
  for (int first = threadIdx.x; first < count; first += BATCH * THREADS) {
    VectorWord<T, 1> words[BATCH] = {};
    int to[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int index = first + i * THREADS, which = quotient(index, plan.depth);
      const int at = remainder(index, which, plan.depth), group = which / ROWS, row = which % ROWS;
      const long long from = static_cast<long long>(part.group + group) * plan.rows + part.row + row;
      to[i] = (group * depth + at) * ROWS + row;
      if (index < count && part.row + row < plan.rows) words[i] = fetch<T, 1>(filter + from * depth + at);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (first + i * THREADS < count) weights[to[i]] = widen(as_vector<T, 1>(words[i]).at[0]);
    }
  }
}

template <int GROUPS, int ROWS, typename T>
__device__ __forceinline__ void add_samples(
    Wide<T> (&sum)[GROUPS][ROWS], const T* planes, const Wide<T>* weights, const Sample<Wide<T>>& sample, int area,
    const Plan& plan, int groups) {
  using A = Wide<T>;
  constexpr int V = 16 / sizeof(A) < ROWS ? 16 / sizeof(A) : ROWS;
  VectorWord<T, 1> corners[GROUPS][4] = {};
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const T* const plane = planes + static_cast<long long>(group) * plan.group_channels * area;
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
      if (group < groups && sample.at[corner] >= 0) corners[group][corner] = fetch<T, 1>(plane + sample.at[corner]);
    }
  }
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    if (group >= groups) break;
    A at[4];
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) at[corner] = widen(as_vector<T, 1>(corners[group][corner]).at[0]);
    const A top = at[0] + sample.lw * (at[1] - at[0]), bottom = at[2] + sample.lw * (at[3] - at[2]);
    const A value = (top + sample.lh * (bottom - top)) * sample.mask;
    const A* const from = weights + group * static_cast<int>(plan.depth.value) * ROWS;
#pragma unroll
    for (int row = 0; row < ROWS; row += V) {
      const Vector<A, V> vector = load<A, V>(from + row);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[group][row + i] += vector.at[i] * value;
    }
  }
}

// Adds the sums of all lanes of a pixel, in a fixed order, in lane 0.
template <typename A, int GROUPS, int ROWS>
__device__ __forceinline__ void add_lanes(A (&sum)[GROUPS][ROWS], A* memory, int lane, int lanes, int across) {
  for (int half = lanes / 2; half > 0; half /= 2) {
    A* const at = memory + threadIdx.x % (half * across);
    __syncthreads();  // the memory is no longer read
    if (lane >= half && lane < 2 * half) {
#pragma unroll
      for (int i = 0; i < GROUPS * ROWS; ++i) at[i * THREADS / 2] = sum[i / ROWS][i % ROWS];
    }
    __syncthreads();
    if (lane >= half) continue;
#pragma unroll
    for (int i = 0; i < GROUPS * ROWS; ++i) sum[i / ROWS][i % ROWS] += at[i * THREADS / 2];
  }
}

template <typename T, int GROUPS, int ROWS>
__global__ void __launch_bounds__(THREADS, GROUPS == 1 && sizeof(T) < 8 ? 4 : 2) direct(
    const T* __restrict__ x, const T* __restrict__ offset, const T* __restrict__ mask, const T* __restrict__ filter,
    T* __restrict__ out, Conv conv, const __grid_constant__ Plan plan) {
  using A = Wide<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  A* const weights = reinterpret_cast<A*>(memory);
  const Part part(plan, GROUPS, ROWS);
  load_filter<GROUPS, ROWS>(weights, filter, plan, part);
  const int across = THREADS / plan.lanes, lane = threadIdx.x / across;
  const int index = blockIdx.x * across + threadIdx.x % across, pixels = conv.pixels.value;
  const int place = min(index, plan.images * pixels - 1);
  const int image = quotient(place, conv.pixels), pixel = remainder(place, image, conv.pixels);
  const int area = conv.height * conv.width, channel_lanes = plan.lanes / plan.unit_lanes;
  const T* const planes =
      x + (static_cast<long long>(image) * conv.channels + part.group * plan.group_channels) * area;
  A sum[GROUPS][ROWS] = {};
  __syncthreads();
  for (int unit = lane % plan.unit_lanes; unit < plan.units; unit += plan.unit_lanes) {
    const int segment = unit / conv.taps, tap = unit - segment * conv.taps;
    const int owner = (part.group * plan.segments + segment) / plan.owner_segments;
    const Sample<A> sample = find(conv, offset, mask, image, owner, tap, pixel);
    const int first = segment * plan.segment;
#pragma unroll 2
    for (int i = lane / plan.unit_lanes; i < plan.segment; i += channel_lanes) {
      const int channel = first + i;
      add_samples<GROUPS, ROWS>(
          sum, planes + static_cast<long long>(channel) * area, weights + (channel * conv.taps + tap) * ROWS, sample,
          area, plan, part.groups);
    }
  }
  add_lanes(sum, weights, lane, plan.lanes, across);
  if (lane > 0 || index != place) return;
#pragma unroll
  for (int i = 0; i < GROUPS * ROWS; ++i) {
    const int group = i / ROWS, row = part.row + i % ROWS;
    if (group >= part.groups || row >= plan.rows) continue;
    const long long plane = (static_cast<long long>(image) * plan.groups + part.group + group) * plan.rows + row;
    out[plane * pixels + pixel] = narrow<T>(sum[group][i % ROWS]);
  }
}
