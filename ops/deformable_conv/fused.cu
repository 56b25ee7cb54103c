// deformable_conv without a column buffer: samples go to shared memory and from there through the tensor cores, sm_80 on.
//
// `prepare` lays x out channels last and the filter as the stages in which it is wanted; `convolve` computes 64 R x
// 32 Q results (output channels x pixels) a block. Four warps sample and bring the filter, R x Q multiply; a ring of
// stages in shared memory lies between. A stage is one tap and 128 bytes of channels.
//
// float32 is taken apart into two halves: 11 bits, and 11 more times 2^11; three of the four products are summed. To
// have it within the range of halves it is scaled by powers of two: the filter so that the largest of each row, samples
// so that the largest of each pixel's stage lies in [2^14, 2^15). Factors within 2^-29 of the largest lose nothing; an
// infinite one gives NaN. A stage is summed by itself and then added with rounding, as tensor cores truncate.

#include "mma.cuh"
#include "pipeline.cuh"
#include "sampling.cuh"

constexpr int PRODUCERS = 128;  // threads; those that multiply come before them
constexpr int LINE = 128;      // bytes of a row of a stage: halves and rests of 32 floats, or 64 elements of 16 bits
constexpr int LANES = 8;       // lanes that share a sample's place, 16 bytes of channels each
constexpr int BATCH = 4;       // samples under way in a thread
constexpr int ALL_CONSUMERS = 1, ALL_PRODUCERS = 2;  // named barriers
constexpr int TOP = 14;        // exponent to which the largest number is scaled
constexpr int LEAST = TOP;     // biased exponent below which nothing is scaled up further: by 2^127
constexpr float REST = 2048;   // scale of the second halves
constexpr int CHUNK = 64;      // channels that a block of `prepare` turns

struct Plan {
  Conv conv;
  int images, rows, row_tiles;   // rows: output channels of a group
  int group_channels;            // of x, as given
  int segment;                   // channels that share group and deformable group
  int depth, line_depth;         // channels of a group and of a line of x as laid out, segments padded
  int chunks, span;              // stages of a tap; those that follow each other before the next tap
  int share, splits;             // stages of a split
  int places;                    // segments that a stage touches, at most
  int stages;                    // of the ring
  Divisor padded;                // channels of a segment as laid out
};

template <typename T>
constexpr int VECTOR = 16 / sizeof(T);

struct Place {  // of one sample: lines of x, weights
  int4 line;
  float4 weight;
};

__device__ __forceinline__ float power(int biased) { return __uint_as_float(static_cast<unsigned int>(biased) << 23); }

// Biased exponent of the largest of some numbers, from their largest magnitude.
__device__ __forceinline__ int exponent(float largest) {
  return max(static_cast<int>(__float_as_uint(largest) >> 23), LEAST);
}

__device__ __forceinline__ unsigned int bits(__half2 pair) { return *reinterpret_cast<const unsigned int*>(&pair); }

// Two scaled numbers as halves, and what is left of them times REST.
__device__ __forceinline__ void take_apart(unsigned int& high, unsigned int& low, float first, float second) {
  const __half2 top = __floats2half2_rn(first, second);
  high = bits(top);
  low = bits(__floats2half2_rn((first - __low2float(top)) * REST, (second - __high2float(top)) * REST));
}

template <typename T>
__device__ __forceinline__ void turn(
    const T* __restrict__ x, T* __restrict__ lines, const Plan& plan, int block) {
  __shared__ T tile[CHUNK][33];
  const int area = plan.conv.height * plan.conv.width;
  const int across = (area + 31) / 32, along = (plan.line_depth + CHUNK - 1) / CHUNK;
  const int image = block / (across * along), within = block - image * across * along;
  const int pixel = within / along * 32, channel = within % along * CHUNK;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = warp; i < CHUNK; i += 8) {
    const int segment = quotient(channel + i, plan.padded), inner = remainder(channel + i, segment, plan.padded);
    const bool valid = channel + i < plan.line_depth && inner < plan.segment && pixel + lane < area;
    const long long from = static_cast<long long>(image) * plan.conv.channels + segment * plan.segment + inner;
    tile[i][lane] = valid ? x[from * area + pixel + lane] : T(0.0f);
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x / CHUNK; i < 32; i += 256 / CHUNK) {
    const int j = threadIdx.x % CHUNK;
    if (pixel + i < area && channel + j < plan.line_depth) {
      lines[(static_cast<long long>(image) * area + pixel + i) * plan.line_depth + channel + j] = tile[j][i];
    }
  }
}

// Tap and chunk of channels of a stage: a few chunks, tap by tap, then the next.
struct Step {
  int visit, inner, tap, super;

  __device__ __forceinline__ Step(const Plan& plan, int stage) {
    visit = stage / plan.span;
    inner = stage - visit * plan.span;
    super = visit / plan.conv.taps;
    tap = visit - super * plan.conv.taps;
  }
  __device__ __forceinline__ int chunk(const Plan& plan) const { return super * plan.span + inner; }
};

// One row of the filter: its stages' lines of 128 bytes, 16 bytes each moved by the row so that eight rows meet no bank twice.
template <typename T>
__device__ __forceinline__ void pack(
    const T* __restrict__ filter, unsigned char* __restrict__ packed, float* __restrict__ scales, const Plan& plan,
    int tile_rows, int padded_row) {
  __shared__ float largest[8];
  const int row_count = plan.row_tiles * tile_rows;
  const int group = padded_row / row_count, row = padded_row - group * row_count;
  const int tile = row / tile_rows, within = row - tile * tile_rows;
  const bool exists = row < plan.rows;
  const int length = plan.group_channels * plan.conv.taps, stages = plan.chunks * plan.conv.taps;
  const T* const from = filter + (static_cast<long long>(group) * plan.rows + row) * length;
  float scale = 1;
  if constexpr (sizeof(T) == 4) {
    float most = 0;
    if (exists) {
      for (int i = threadIdx.x; i < length; i += 256) most = fmaxf(most, fabsf(from[i]));
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < 8; ++warp) most = fmaxf(most, largest[warp]);
    const int top = exponent(most);
    scale = power(254 + TOP - top);
    if (exists && threadIdx.x == 0) scales[group * plan.rows + row] = power(min(top, 254));
  }
  constexpr int PARTS = sizeof(T) == 4 ? 4 : 8;  // eights of channels of a stage
  unsigned char* const to =
      packed + (static_cast<long long>(group * plan.row_tiles + tile) * stages * tile_rows + within) * LINE;
  for (int i = threadIdx.x; i < stages * PARTS; i += 256) {  // neighbours take the taps of a channel, as they lie
    const int piece = i / plan.conv.taps, tap = i - piece * plan.conv.taps, first = piece * 8, part = piece % PARTS;
    const int chunk = piece / PARTS, super = chunk / plan.span;
    const int stage = (super * plan.conv.taps + tap) * plan.span + chunk - super * plan.span;
    T values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int segment = quotient(first + j, plan.padded), inner = remainder(first + j, segment, plan.padded);
      const bool valid = exists && first + j < plan.depth && inner < plan.segment;
      values[j] = valid ? from[(segment * plan.segment + inner) * plan.conv.taps + tap] : T(0.0f);
    }
    unsigned char* const line = to + static_cast<long long>(stage) * tile_rows * LINE;
    if constexpr (sizeof(T) == 4) {
      unsigned int high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) take_apart(high[j], low[j], values[2 * j] * scale, values[2 * j + 1] * scale);
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = make_uint4(high[0], high[1], high[2], high[3]);
      *reinterpret_cast<uint4*>(line + ((part + 4) ^ within % 8) * 16) = make_uint4(low[0], low[1], low[2], low[3]);
    } else {
      alignas(16) T line_values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) line_values[j] = values[j];
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = *reinterpret_cast<const uint4*>(line_values);
    }
  }
}

// x (N, C, H, W) to lines (N, H, W, channels) and one of zeros; filter to packed and its rows' scales.
template <typename T>
__global__ void __launch_bounds__(256, 4) prepare(
    const T* __restrict__ x, const T* __restrict__ filter, T* __restrict__ lines, unsigned char* __restrict__ packed,
    float* __restrict__ scales, int filter_rows, int tile_rows, const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_rows) {
    pack(filter, packed, scales, plan, tile_rows, block);
    return;
  }
  if (block == filter_rows) {
    T* const zeros = lines + static_cast<long long>(plan.images) * plan.conv.height * plan.conv.width * plan.line_depth;
    for (int i = threadIdx.x; i < plan.line_depth; i += 256) zeros[i] = T(0.0f);
    return;
  }
  turn(x, lines, plan, block - filter_rows - 1);
}

#if __CUDA_ARCH__ >= 800

template <int R, int Q>
struct Ring {  // shared memory of a block
  static constexpr int ROWS = WARP_ROWS * R, COLUMNS = WARP_COLUMNS * Q, CONSUMERS = 32 * R * Q;
  static constexpr int FILTER_BYTES = ROWS * LINE, STAGE_BYTES = FILTER_BYTES + COLUMNS * LINE;
  unsigned char* memory;
  float* scales;  // (stages, COLUMNS): what undoes the samples' scaling
  Place* places;  // (2, places, COLUMNS)
  unsigned long long *full, *empty;

  __device__ __forceinline__ Ring(unsigned char* start, const Plan& plan) : memory(start) {
    places = reinterpret_cast<Place*>(start + plan.stages * STAGE_BYTES);
    scales = reinterpret_cast<float*>(places + 2 * plan.places * COLUMNS);
    full = reinterpret_cast<unsigned long long*>(scales + plan.stages * COLUMNS);
    empty = full + plan.stages;
  }
  __device__ __forceinline__ unsigned char* filter(int slot) const { return memory + slot * STAGE_BYTES; }
  __device__ __forceinline__ unsigned char* samples(int slot) const { return filter(slot) + FILTER_BYTES; }
};

// Slots of the ring in turn, and which time round it is.
struct Turn {
  int slot = 0;
  unsigned int parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Where the samples of one visit lie, for all columns of the block and all segments that its chunk touches.
template <typename T, int R, int Q>
__device__ __forceinline__ void locate(
    Place* to, const T* offset, const T* mask, const Plan& plan, const Step& step, int first_column) {
  constexpr int COLUMNS = Ring<R, Q>::COLUMNS;
  const int total = plan.images * plan.conv.pixels.value, area = plan.conv.height * plan.conv.width;
  const int first = quotient(step.chunk(plan) * LANES * VECTOR<T>, plan.padded);
  const int segments = plan.group_channels / plan.segment, zeros = plan.images * area;
#pragma unroll 2
  for (int i = threadIdx.x - Ring<R, Q>::CONSUMERS; i < plan.places * COLUMNS; i += PRODUCERS) {
    const int segment = first + i / COLUMNS, column = first_column + i % COLUMNS;
    Place place = {make_int4(zeros, zeros, zeros, zeros), make_float4(0, 0, 0, 0)};
    if (segment < segments && column < total) {
      const int group = (blockIdx.y * segments + segment) * plan.segment / plan.conv.per_group;
      const int image = quotient(column, plan.conv.pixels), pixel = remainder(column, image, plan.conv.pixels);
      const Sample<float> sample = find(plan.conv, offset, mask, image, group, step.tap, pixel);
      const bool any = (sample.at[0] & sample.at[1] & sample.at[2] & sample.at[3]) >= 0;
      const float nothing = any ? 0.0f : 0.0f * sample.mask;  // an inf or NaN as mask shows where there is no sample
      const auto line = [&](int at) { return at < 0 ? zeros : image * area + at; };
      const auto weight = [&](int corner) {
        return sample.at[corner] < 0 ? nothing : sample.weight(corner) * sample.mask;
      };
      place.line = make_int4(line(sample.at[0]), line(sample.at[1]), line(sample.at[2]), line(sample.at[3]));
      place.weight = make_float4(weight(0), weight(1), weight(2), weight(3));
    }
    to[i] = place;
  }
}

template <typename T>
struct Corners {
  Pack<T, VECTOR<T>> at[4];
  __device__ __forceinline__ void load_from(const char* from, int bytes, const int4& line) {
    const int lines[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 word = __ldg(reinterpret_cast<const uint4*>(from + static_cast<long long>(lines[i]) * bytes));
      at[i] = *reinterpret_cast<const Pack<T, VECTOR<T>>*>(&word);
    }
  }
  __device__ __forceinline__ float blend(int i, const float4& weight) const {
    float sum = weight.x * widen(at[0].at[i]);
    sum = fmaf(weight.y, widen(at[1].at[i]), sum);
    sum = fmaf(weight.z, widen(at[2].at[i]), sum);
    return fmaf(weight.w, widen(at[3].at[i]), sum);
  }
};

// A sample's channels of this lane into its line, taken apart and scaled by what eight lanes have in common.
__device__ __forceinline__ void put(
    unsigned char* line, float* scale, const Corners<float>& corners, const float4& weight, int lane, int row) {
  float value[4], largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[i] = corners.blend(i, weight);
    largest = fmaxf(largest, fabsf(value[i]));
  }
#pragma unroll
  for (int other = 1; other < LANES; other *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, other));
  }
  const int top = exponent(largest);
  const float factor = power(254 + TOP - top);
  uint2 high, low;
  take_apart(high.x, low.x, value[0] * factor, value[1] * factor);
  take_apart(high.y, low.y, value[2] * factor, value[3] * factor);
  unsigned char* const to = line + lane % 2 * 8;
  *reinterpret_cast<uint2*>(to + ((lane / 2) ^ row % 8) * 16) = high;
  *reinterpret_cast<uint2*>(to + ((lane / 2 + 4) ^ row % 8) * 16) = low;
  if (lane == 0) *scale = power(top) * power(127 - 2 * TOP);  // may be subnormal
}

template <typename T>
__device__ __forceinline__ void put(
    unsigned char* line, float*, const Corners<T>& corners, const float4& weight, int lane, int row) {
  Pack<T, 8> values;
#pragma unroll
  for (int i = 0; i < 8; ++i) values.at[i] = narrow<T>(corners.blend(i, weight));
  store<T, 8>(reinterpret_cast<T*>(line + (lane ^ row % 8) * 16), values);
}

template <typename T, int R, int Q>
__device__ __forceinline__ void produce(
    const Ring<R, Q>& ring, const T* __restrict__ lines, const unsigned char* __restrict__ packed,
    const T* __restrict__ offset, const T* __restrict__ mask, const Plan& plan, int first_column, int begin, int end) {
  constexpr int COLUMNS = Ring<R, Q>::COLUMNS, FILTER_BYTES = Ring<R, Q>::FILTER_BYTES;
  const int thread = threadIdx.x - Ring<R, Q>::CONSUMERS, lane = thread % LANES;
  // lanes of half a warp fill lines four apart: their banks differ
  const int octet = thread / LANES, row = octet % 2 * 4 + octet / 2 % 2 + octet / 4 % 2 * 2 + octet / 8 * 8;
  const int bytes = plan.line_depth * static_cast<int>(sizeof(T));
  packed += static_cast<long long>(begin) * FILTER_BYTES + thread * 16;
  Step step(plan, begin);
  locate<T, R, Q>(ring.places + (step.visit & 1) * plan.places * COLUMNS, offset, mask, plan, step, first_column);
  Turn turn;
  bool fresh = true;
  for (int stage = begin; stage < end; ++stage, turn.next(plan.stages), packed += FILTER_BYTES) {
    if (fresh) {
      meet<ALL_PRODUCERS, PRODUCERS>();  // these places are found, those before are used no more
      const int later = stage - step.inner + plan.span;
      if (later < end) {
        const Step next(plan, later);
        locate<T, R, Q>(ring.places + (next.visit & 1) * plan.places * COLUMNS, offset, mask, plan, next, first_column);
      }
    }
    const int start = step.chunk(plan) * LANES * VECTOR<T>, channel = start + lane * VECTOR<T>;
    const bool exists = channel < plan.depth;
    const int segment = quotient(exists ? channel : plan.depth - VECTOR<T>, plan.padded);
    const Place* const places =
        ring.places + ((step.visit & 1) * plan.places + segment - quotient(start, plan.padded)) * COLUMNS + row;
    const char* const from = reinterpret_cast<const char*>(lines) +
                             (exists ? static_cast<long long>(blockIdx.y * plan.depth + channel) * sizeof(T)
                                     : static_cast<long long>(plan.images) * plan.conv.height * plan.conv.width * bytes);
    unsigned char* const samples = ring.samples(turn.slot) + row * LINE;
    float* const scales = ring.scales + turn.slot * COLUMNS + row;
#pragma unroll 1
    for (int batch = 0; batch < COLUMNS; batch += 16 * BATCH) {
      Corners<T> corners[BATCH];
#pragma unroll
      for (int i = 0; i < BATCH; ++i) corners[i].load_from(from, exists ? bytes : 0, places[batch + 16 * i].line);
      if (batch == 0) {
        barrier_wait(ring.empty + turn.slot, turn.parity ^ 1);
#pragma unroll
        for (int at = 0; at < FILTER_BYTES; at += PRODUCERS * 16) {
          copy_async<unsigned char, 16>(ring.filter(turn.slot) + at + thread * 16, packed + at, true);
        }
        barrier_arrive_after_copies(ring.full + turn.slot);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const int column = batch + 16 * i;
        put(samples + column * LINE, scales + column, corners[i], places[column].weight, lane, row);
      }
    }
    barrier_arrive(ring.full + turn.slot);
    fresh = ++step.inner == plan.span;
    if (fresh) step = Step(plan, stage + 1);
  }
}

// This lane's row of 16 bytes for load_matrices, in a warp's part of the filter and of the samples.
struct Lane {
  int filter, samples, filter_flip, samples_flip;
  __device__ __forceinline__ Lane(int row, int column) {
    const int lane = threadIdx.x % 32, inner = lane % 8, which = lane / 8;
    filter = (row + which % 2 * 8 + inner) * LINE;
    samples = (column + which / 2 * 8 + inner) * LINE;
    filter_flip = ((which / 2) ^ inner) * 16;
    samples_flip = ((which % 2) ^ inner) * 16;
  }
};

__device__ __forceinline__ void load_samples(
    unsigned int (&to)[COLUMN_TILES][2], const unsigned char* samples, const Lane& lane, int part) {
#pragma unroll
  for (int j = 0; j < COLUMN_TILES; j += 2) {
    unsigned int four[4];
    load_matrices<false>(four, samples + lane.samples + j * 8 * LINE + ((part * 16) ^ lane.samples_flip));
    to[j][0] = four[0], to[j][1] = four[1], to[j + 1][0] = four[2], to[j + 1][1] = four[3];
  }
}

__device__ __forceinline__ void load_filter(
    unsigned int (&to)[4], const unsigned char* filter, const Lane& lane, int i, int part) {
  load_matrices<false>(to, filter + lane.filter + i * 16 * LINE + ((part * 16) ^ lane.filter_flip));
}

__device__ __forceinline__ void multiply_stage(
    Accumulators& sum, const unsigned char* filter, const unsigned char* samples, const float* scales, const Lane& lane,
    const float*) {
  const __half* const halves = nullptr;
  unsigned int high_b[2][COLUMN_TILES][2], low_b[2][COLUMN_TILES][2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    load_samples(high_b[k], samples, lane, 2 * k);
    load_samples(low_b[k], samples, lane, 2 * k + 4);
  }
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
    float whole[COLUMN_TILES][4] = {}, rest[COLUMN_TILES][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      unsigned int high[4], low[4];
      load_filter(high, filter, lane, i, 2 * k);
      load_filter(low, filter, lane, i, 2 * k + 4);
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) mma_16(whole[j], high, high_b[k][j], halves);
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) mma_16(rest[j], high, low_b[k][j], halves);
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) mma_16(rest[j], low, high_b[k][j], halves);
    }
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
      const float2 scale = *reinterpret_cast<const float2*>(scales + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float value = fmaf(rest[j][part], 1 / REST, whole[j][part]);
        sum.at[i][j][part] = fmaf(value, part % 2 == 0 ? scale.x : scale.y, sum.at[i][j][part]);
      }
    }
  }
}

template <typename T>
__device__ __forceinline__ void multiply_stage(
    Accumulators& sum, const unsigned char* filter, const unsigned char* samples, const float*, const Lane& lane,
    const T* type) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    unsigned int b[COLUMN_TILES][2];
    load_samples(b, samples, lane, 2 * k);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      unsigned int a[4];
      load_filter(a, filter, lane, i, 2 * k);
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) mma_16(sum.at[i][j], a, b[j], type);
    }
  }
}

// Adds up what the splits of a tile have, in order, in the block that is last to have its own; false in the others.
template <int CONSUMERS>
__device__ __forceinline__ bool add_splits(
    Accumulators& sum, float* partial, unsigned int* ticket, int splits, unsigned int* shared) {
  constexpr long long SIZE = CONSUMERS / 32 * WARP_ROWS * WARP_COLUMNS;
  float4* const mine = reinterpret_cast<float4*>(partial + blockIdx.z * SIZE) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
      const float(&at)[4] = sum.at[i][j];
      mine[(i * COLUMN_TILES + j) * CONSUMERS] = make_float4(at[0], at[1], at[2], at[3]);
    }
  __threadfence();
  meet<ALL_CONSUMERS, CONSUMERS>();
  if (threadIdx.x == 0) {
    *shared = atomicAdd(ticket, 1u);
    __threadfence();
  }
  meet<ALL_CONSUMERS, CONSUMERS>();
  if (*shared != splits - 1) return false;
  __threadfence();
  if (threadIdx.x == 0) *ticket = 0;  // as the next run wants it
  sum = Accumulators();
  for (int split = 0; split < splits; ++split) {
    const float4* const from = reinterpret_cast<const float4*>(partial + split * SIZE) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) {
        const float4 part = __ldcg(from + (i * COLUMN_TILES + j) * CONSUMERS);
        float(&at)[4] = sum.at[i][j];
        at[0] += part.x, at[1] += part.y, at[2] += part.z, at[3] += part.w;
      }
  }
  return true;
}

// T: type of all tensors; R, Q: rows and columns of warps. Grid: tiles of rows within tiles of columns, groups, splits.
template <typename T, int R, int Q>
__global__ void __launch_bounds__(PRODUCERS + 32 * R * Q, R == 1 ? 2 : 1) convolve(
    const T* __restrict__ lines, const unsigned char* __restrict__ packed, const float* __restrict__ row_scales,
    const T* __restrict__ offset, const T* __restrict__ mask, T* __restrict__ out, float* __restrict__ partial,
    unsigned int* __restrict__ tickets, const __grid_constant__ Plan plan) {
  constexpr int ROWS = Ring<R, Q>::ROWS, COLUMNS = Ring<R, Q>::COLUMNS, CONSUMERS = Ring<R, Q>::CONSUMERS;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ unsigned int place_in_line;
  const Ring<R, Q> ring(memory, plan);
  const int column_tile = blockIdx.x / plan.row_tiles, row_tile = blockIdx.x - column_tile * plan.row_tiles;
  const int stages = plan.chunks * plan.conv.taps, first_column = column_tile * COLUMNS;
  const int begin = blockIdx.z * plan.share, end = min(begin + plan.share, stages);
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int slot = 0; slot < plan.stages; ++slot) {
      barrier_init(ring.full + slot, 2 * PRODUCERS);
      barrier_init(ring.empty + slot, CONSUMERS / 32);
    }
  }
  __syncthreads();
  if (threadIdx.x >= CONSUMERS) {
    packed += static_cast<long long>(blockIdx.y * plan.row_tiles + row_tile) * stages * Ring<R, Q>::FILTER_BYTES;
    produce<T, R, Q>(ring, lines, packed, offset, mask, plan, first_column, begin, end);
    return;
  }
  const int warp = threadIdx.x / 32, row = warp % R * WARP_ROWS, column = warp / R * WARP_COLUMNS;
  const Lane lane(row, column);
  Accumulators sum;
  Turn turn;
  for (int left = end - begin; left > 0; --left, turn.next(plan.stages)) {
    barrier_wait(ring.full + turn.slot, turn.parity);
    const float* const scales = ring.scales + turn.slot * COLUMNS + column;
    multiply_stage(sum, ring.filter(turn.slot), ring.samples(turn.slot), scales, lane, static_cast<const T*>(nullptr));
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty + turn.slot);
  }
  if (plan.splits > 1) {
    const long long tile = blockIdx.y * gridDim.x + blockIdx.x;
    float* const mine = partial + tile * plan.splits * ROWS * COLUMNS;
    if (!add_splits<CONSUMERS>(sum, mine, tickets + tile, plan.splits, &place_in_line)) return;
  }
  constexpr int PITCH = COLUMNS + 8;
  float* const result = reinterpret_cast<float*>(memory);
  meet<ALL_CONSUMERS, CONSUMERS>();  // the ring is used no more
  lay_out<PITCH>(result, sum, row, column);
  meet<ALL_CONSUMERS, CONSUMERS>();
  const int mine = first_column + threadIdx.x % COLUMNS, first_row = row_tile * ROWS;
  if (mine >= plan.images * static_cast<int>(plan.conv.pixels.value)) return;
  const int image = quotient(mine, plan.conv.pixels), pixel = remainder(mine, image, plan.conv.pixels);
  const int group_row = blockIdx.y * plan.rows + first_row;
  const long long pixels = plan.conv.pixels.value;
  T* const to = out + (static_cast<long long>(image) * gridDim.y * plan.rows + group_row) * pixels + pixel;
#pragma unroll 8
  for (int i = threadIdx.x / COLUMNS; i < ROWS; i += CONSUMERS / COLUMNS) {
    if (first_row + i >= plan.rows) return;
    float value = result[i * PITCH + threadIdx.x % COLUMNS];
    if constexpr (sizeof(T) == 4) value *= row_scales[group_row + i];
    to[i * pixels] = narrow<T>(value);
  }
}

#else

template <typename T, int R, int Q>
__global__ void convolve(const T*, const unsigned char*, const float*, const T*, const T*, T*, float*, unsigned int*, Plan) {
  __trap();  // older devices take columns and a product
}

#endif
