// deformable_conv without a column buffer: samples pass through shared memory to the tensor cores, on sm_90a.
//
// `prepare` transposes x to channels last, packs the filter by stages and computes sample positions; `convolve` computes
// 64 Q pixels x N R output channels per block. Eight producer warps sample, Q x R consumer warpgroups multiply, with a
// ring of stages in shared memory between them. A stage is one tap and 128 bytes of channels.
//
// float32 is split into two halves of 11 bits each, and three of the four products are summed. To fit the range of
// halves it is scaled by powers of two: the filter so that the largest of each row, samples so that the largest of each
// pixel's stage lies in [2^14, 2^15). Factors within 2^-17 of the largest lose nothing, smaller ones are exact to 2^-40
// of it; an infinite one gives NaN. A stage is summed separately and then added with rounding, as tensor cores truncate.
// For the accuracy of TF32 the first half suffices: HALVES is 1, and a stage has twice the channels.

#include "halves.cuh"
#include "lines.cuh"
#include "sampling.cuh"
#include "warpgroup.cuh"

constexpr int CONSUMERS = 256, PRODUCERS = 256;  // threads; consumers have the lower indices
constexpr int LINE = 128;      // bytes of a row of a stage: 64 elements of 16 bits, or HALVES halves of each float
constexpr int LANES = 8;       // lanes per sample, 16 bytes of channels each
constexpr int OCTETS = PRODUCERS / LANES;
constexpr int AHEAD = 2;       // samples in flight per thread
constexpr int LOADS = 16;      // loads of the filter in flight per thread
constexpr int ALL_CONSUMERS = 1;  // named barrier
constexpr int ROW_SCALES = 1024;  // bytes of a block's row scales

constexpr int REGISTERS = 128;  // average registers per thread
template <typename T, int HALVES, int N>  // registers per producer thread; float32 has two sets of sums
constexpr int SAMPLING = sizeof(T) == 2 ? 152 : HALVES == 2 ? 96 : N == 128 ? 104 : 112;

struct Plan {
  Conv conv;
  int images, rows, row_tiles;   // rows: output channels of a group
  int group_channels;            // channels of a group of x
  int segment;                   // channels that share group and deformable group
  int depth, line_depth;         // channels of a group and of a line of x as stored, segments padded
  int chunks, span;              // stages of a tap; consecutive stages before the next tap
  int share, splits;             // stages of a split
  int positions;                 // maximum segments that a stage touches
  int stages;                    // of the ring
  int tiles;                     // tiles of rows within tiles of columns
  int results;                   // offset in bytes of a tile's staged results from the ring
  int strip;                     // rows of pixels that tiles traverse column by column: neighbours share reads
  Divisor padded;                // channels of a segment as stored
  Divisor per_group;             // channels of a deformable group
  Divisor strip_pixels;
  Divisor taps, run;             // taps of the filter; chunks of a span
};

// Pixel of an image at position `index` in the order of strips.
__device__ __forceinline__ int pixel_at(const Plan& plan, int index) {
  const int strip = quotient(index, plan.strip_pixels), within = remainder(index, strip, plan.strip_pixels);
  const int width = plan.conv.out_width.value, height = plan.conv.pixels.value / width;
  const int rows = min(plan.strip, height - strip * plan.strip), column = within / rows;
  return (strip * plan.strip + within - column * rows) * width + column;
}

template <typename T>
constexpr int VECTOR = 16 / sizeof(T);
template <int HALVES>
constexpr int DEPTH = LINE / 2 / HALVES;  // channels of a stage
template <typename T, int HALVES>
constexpr int READS = DEPTH<HALVES> / LANES / VECTOR<T>;  // reads of a lane per stage and corner

// Channel of a stage that is the j-th of the part-th eight, in the order of lanes that read twice.
template <typename T, int HALVES>
__device__ __forceinline__ int channel_of(int part, int j) {
  constexpr int EACH = 8 / READS<T, HALVES>;
  return j / EACH * (LANES * EACH) + part * EACH + j % EACH;
}

struct alignas(16) SamplePosition {  // upper left corner's line times 16, plus a bit for each corner inside the image
  int corner;
  float lh, lw, mask;
};

struct SampleLines {  // lines of x and weights of a sample's corners
  uint4 line;
  float4 weight;
};

// Tap and chunk of channels of a stage: a span of chunks for every tap, then the next span.
struct Step {
  int inner, tap, super;

  __device__ __forceinline__ Step(const Plan& plan, int stage) {
    const int run = stage / plan.span;
    inner = stage - run * plan.span;
    super = run / plan.conv.taps;
    tap = run - super * plan.conv.taps;
  }
  __device__ __forceinline__ int chunk(const Plan& plan) const { return super * plan.span + inner; }

  __device__ __forceinline__ void next_run(const Plan& plan) {
    inner = 0;
    if (++tap == plan.conv.taps) {
      tap = 0;
      ++super;
    }
  }
};

// Packs one row of the filter into its stages' lines of 128 bytes, swizzled so that eight rows use different banks.
template <typename T, int HALVES>
__device__ __forceinline__ void pack_filter(
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
    for (int first = exists ? threadIdx.x : length; first < length; first += 256 * LOADS) {
      float values[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) values[i] = i * 256 < length - first ? from[first + i * 256] : 0.0f;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) most = fmaxf(most, fabsf(values[i]));
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
  constexpr int PARTS = DEPTH<HALVES> / 8;  // groups of eight channels in a stage
  unsigned char* const to =
      packed + (static_cast<long long>(group * plan.row_tiles + tile) * stages * tile_rows + within) * LINE;
  const bool padded = plan.segment != plan.padded.value;
  for (int i = threadIdx.x; i < stages * PARTS; i += 256) {  // neighbouring threads read neighbouring taps
    const int piece = quotient(i, plan.taps), tap = remainder(i, piece, plan.taps), part = piece % PARTS;
    const int chunk = piece / PARTS, super = quotient(chunk, plan.run);
    const int stage = (super * plan.conv.taps + tap) * plan.span + remainder(chunk, super, plan.run);
    const int first = chunk * DEPTH<HALVES>;
    T values[8];
    if (exists && !padded && first + DEPTH<HALVES> <= plan.depth) {
      const T* const own = from + first * plan.conv.taps + tap;
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = own[channel_of<T, HALVES>(part, j) * plan.conv.taps];
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int stored = first + channel_of<T, HALVES>(part, j);
        const int channel = stored < plan.depth ? given_channel(stored, plan.segment, plan.padded) : -1;
        values[j] = exists && channel >= 0 ? from[channel * plan.conv.taps + tap] : T(0.0f);
      }
    }
    unsigned char* const line = to + static_cast<long long>(stage) * tile_rows * LINE;
    if constexpr (sizeof(T) == 4) {
      unsigned int high[4], low[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) split_halves(high[j], low[j], values[2 * j] * scale, values[2 * j + 1] * scale);
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = make_uint4(high[0], high[1], high[2], high[3]);
      if (HALVES == 1) continue;
      *reinterpret_cast<uint4*>(line + ((part + 4) ^ within % 8) * 16) = make_uint4(low[0], low[1], low[2], low[3]);
    } else {
      alignas(16) T line_values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) line_values[j] = values[j];
      *reinterpret_cast<uint4*>(line + (part ^ within % 8) * 16) = *reinterpret_cast<const uint4*>(line_values);
    }
  }
}

template <typename T>
__device__ __forceinline__ void locate(
    const T* __restrict__ offset, const T* __restrict__ mask, SamplePosition* __restrict__ positions, const Plan& plan, int index) {
  const int total = plan.images * plan.conv.pixels.value, area = plan.conv.height * plan.conv.width;
  const int entry = index / total, column = index - entry * total;
  if (entry >= plan.conv.taps * plan.conv.channels / plan.conv.per_group) return;
  const int group = entry / plan.conv.taps, tap = entry - group * plan.conv.taps;
  const int image = quotient(column, plan.conv.pixels);
  const int pixel = pixel_at(plan, remainder(column, image, plan.conv.pixels));
  const Sample<float> sample = find(plan.conv, offset, mask, image, group, tap, pixel);
  int flags = 0, first = 0;
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    if (sample.at[corner] < 0) continue;
    flags |= 1 << corner;
    first = sample.at[corner] - corner / 2 * plan.conv.width - corner % 2;
  }
  positions[index] = {(image * area + first) * 16 + flags, sample.lh, sample.lw, sample.mask};
}

// prepare: blocks pack the filter, transpose x to lines and compute sample positions.
// Layout   x (N, C, H, W), filter, offset, mask      Grid  rows of the filter + pieces of x + 1 + positions / 256
// Block    256       Writes  lines (N, H, W, channels) and a line of zeros, packed filter and its rows' scales,
//                            positions (deformable groups, taps, pixels of all images)
// Why      16-bit types are bound by latency, so that the number of resident blocks is maximized
template <typename T, int HALVES>
__global__ void __launch_bounds__(256, sizeof(T) == 2 ? 6 : 4) prepare(
    const T* __restrict__ x, const T* __restrict__ filter, const T* __restrict__ offset, const T* __restrict__ mask,
    T* __restrict__ lines, T* __restrict__ zeros, unsigned char* __restrict__ packed, float* __restrict__ scales,
    SamplePosition* __restrict__ positions, int filter_rows, int pieces, int tile_rows, const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_rows) {
    pack_filter<T, HALVES>(filter, packed, scales, plan, tile_rows, block);
  } else if (block < filter_rows + pieces) {
    const Lines of = {
        plan.conv.height * plan.conv.width, plan.conv.channels, plan.segment, plan.line_depth, plan.padded};
    to_channels_last(x, lines, static_cast<float*>(nullptr), of, block - filter_rows);
  } else if (block > filter_rows + pieces) {
    locate(offset, mask, positions, plan, (block - filter_rows - pieces - 1) * 256 + threadIdx.x);
  } else {
    for (int i = threadIdx.x; i < plan.line_depth; i += 256) zeros[i] = T(0.0f);
  }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int N, int R, int Q>
struct Ring {  // shared memory of a block
  static constexpr int ROWS = N * R, COLUMNS = 64 * Q, ITEMS = COLUMNS / OCTETS;
  static constexpr int FILTER_BYTES = ROWS * LINE, STAGE_BYTES = FILTER_BYTES + COLUMNS * LINE;
  float* row_scales;  // (ROWS): inverse scales of the filter
  unsigned char* memory;
  SampleLines* all_sample_lines;  // (producer warps, positions, 4 ITEMS): of the chunks in flight
  SamplePosition* positions;      // (producer warps, positions, 4 ITEMS): of the next chunks
  float* scales;                  // (stages, COLUMNS): inverse scales of the samples
  unsigned long long *full, *empty;
  unsigned int* counter;

  __device__ __forceinline__ Ring(unsigned char* start, const Plan& plan) : memory(start + ROW_SCALES) {
    row_scales = reinterpret_cast<float*>(start);
    all_sample_lines = reinterpret_cast<SampleLines*>(memory + plan.stages * STAGE_BYTES);
    positions = reinterpret_cast<SamplePosition*>(all_sample_lines + plan.positions * COLUMNS);
    scales = reinterpret_cast<float*>(positions + plan.positions * COLUMNS);
    full = reinterpret_cast<unsigned long long*>(scales + plan.stages * COLUMNS);
    empty = full + plan.stages;
    counter = reinterpret_cast<unsigned int*>(empty + plan.stages);
  }
  __device__ __forceinline__ unsigned char* filter(int slot) const { return memory + slot * STAGE_BYTES; }
  __device__ __forceinline__ unsigned char* samples(int slot) const { return filter(slot) + FILTER_BYTES; }
};

// Slot of the ring, and parity of the number of rounds through it.
struct RingCursor {
  int slot = 0;
  unsigned int parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Column of the block that is the i-th of an octet of a warp. Octets of half a warp are four apart: their banks differ.
__device__ __forceinline__ int column_of(int warp, int octet, int i) {
  return octet % 2 * 4 + octet / 2 + warp % 2 * 2 + warp / 2 * 8 + i * OCTETS;
}

// Loader of the positions of a warp's samples, one run (a tap, a span of chunks) ahead.
template <int HALVES, int N, int R, int Q>
struct PositionLoader {
  static constexpr int EACH = 4 * Ring<N, R, Q>::ITEMS;
  const Plan& plan;
  const SamplePosition* table;
  SampleLines* all_sample_lines;
  SamplePosition* positions;
  int first_column, segments, warp, lane;

  __device__ __forceinline__ PositionLoader(const Plan& plan, const Ring<N, R, Q>& ring, const SamplePosition* table, int first_column)
      : plan(plan), table(table), first_column(first_column) {
    segments = plan.group_channels / plan.segment;
    warp = threadIdx.x / 32 - CONSUMERS / 32;
    lane = threadIdx.x % 32;
    all_sample_lines = ring.all_sample_lines + warp * plan.positions * EACH;
    positions = ring.positions + warp * plan.positions * EACH;
  }

  __device__ __forceinline__ void request(const Step& step) const {
    const int total = plan.images * plan.conv.pixels.value;
    const int first = blockIdx.y * segments + quotient(step.chunk(plan) * DEPTH<HALVES>, plan.padded);
#pragma unroll 1
    for (int i = lane; i < plan.positions * EACH; i += 32) {
      const int segment = first + i / EACH, column = first_column + column_of(warp, i % 4, i % EACH / 4);
      const bool valid = segment < (blockIdx.y + 1) * segments && column < total;
      const int entry = quotient(segment * plan.segment, plan.per_group) * plan.conv.taps + step.tap;
      cp_async_zfill(positions + i, valid ? table + static_cast<long long>(entry) * total + column : table, valid);
    }
  }

  __device__ __forceinline__ void receive() const {
    const int zeros = plan.images * plan.conv.height * plan.conv.width, width = plan.conv.width;
    cp_async_wait_all();
    __syncwarp();  // all lanes have read the previous ones
#pragma unroll 1
    for (int i = lane; i < plan.positions * EACH; i += 32) {
      const SamplePosition position = positions[i];
      const int flags = position.corner & 15, first = position.corner >> 4;
      const float nothing = flags != 0 ? 0.0f : 0.0f * position.mask;  // propagates an inf or NaN of the mask
      const auto line = [&](int corner) {
        return flags & 1 << corner ? first + corner / 2 * width + corner % 2 : zeros;
      };
      const auto weight = [&](int corner, float side) { return flags & 1 << corner ? side * position.mask : nothing; };
      const float uh = 1 - position.lh, uw = 1 - position.lw;
      all_sample_lines[i].line = make_uint4(line(0), line(1), line(2), line(3));
      all_sample_lines[i].weight = make_float4(
          weight(0, uh * uw), weight(1, uh * position.lw), weight(2, position.lh * uw), weight(3, position.lh * position.lw));
    }
    __syncwarp();
  }
};

template <typename T>
struct CornerValues {
  Vector<T, VECTOR<T>> at[4];
  float4 weight;
  __device__ __forceinline__ void load_from(const char* from, unsigned int bytes, const SampleLines& sample_lines) {
    const uint4 line = sample_lines.line;
    const unsigned int lines[4] = {line.x, line.y, line.z, line.w};
    weight = sample_lines.weight;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 word = __ldg(reinterpret_cast<const uint4*>(from + static_cast<unsigned long long>(lines[i]) * bytes));
      at[i] = *reinterpret_cast<const Vector<T, VECTOR<T>>*>(&word);
    }
  }
  __device__ __forceinline__ float blend(int i) const {
    float sum = weight.x * widen(at[0].at[i]);
    sum = fmaf(weight.y, widen(at[1].at[i]), sum);
    sum = fmaf(weight.z, widen(at[2].at[i]), sum);
    return fmaf(weight.w, widen(at[3].at[i]), sum);
  }
};

// Samples of a pixel's channels.
struct Whole {  // of float32
  float at[4];
  __device__ __forceinline__ void blend(const CornerValues<float>& corners) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = corners.blend(i);
  }
};

template <typename T>
struct Narrowed {
  Vector<T, 8> vector;
  __device__ __forceinline__ void blend(const CornerValues<T>& corners) {
#pragma unroll
    for (int i = 0; i < 8; ++i) vector.at[i] = narrow<T>(corners.blend(i));
  }
};

template <typename T>
struct Sampled {
  using type = Narrowed<T>;
};
template <>
struct Sampled<float> {
  using type = Whole;
};

__device__ __forceinline__ float largest_of(const Whole& samples) {
  const float(&at)[4] = samples.at;
  return fmaxf(fmaxf(fabsf(at[0]), fabsf(at[1])), fmaxf(fabsf(at[2]), fabsf(at[3])));
}

// Stores samples OCTETS lines apart, scaled by their common exponent and split into halves.
template <int HALVES>
__device__ __forceinline__ void put(
    unsigned char* line, float* scales, const Whole (&samples)[AHEAD], int lane, int row) {
  constexpr int PIXELS = HALVES;  // with one half, both samples are of one pixel
  float largest[PIXELS];
#pragma unroll
  for (int i = 0; i < PIXELS; ++i) largest[i] = largest_of(samples[i]);
  if constexpr (HALVES == 1) largest[0] = fmaxf(largest[0], largest_of(samples[1]));
#pragma unroll
  for (int other = 1; other < LANES; other *= 2) {
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], other));
    }
  }
#pragma unroll
  for (int i = 0; i < PIXELS; ++i) {
    const int top = exponent(largest[i]);
    const float factor = power(254 + TOP - top);
    uint2 high[AHEAD], low[AHEAD];
#pragma unroll
    for (int j = i; j < i + AHEAD / PIXELS; ++j) {
      const float(&at)[4] = samples[j].at;
      split_halves(high[j].x, low[j].x, at[0] * factor, at[1] * factor);
      split_halves(high[j].y, low[j].y, at[2] * factor, at[3] * factor);
    }
    if constexpr (HALVES == 1) {
      *reinterpret_cast<uint4*>(line + (lane ^ row % 8) * 16) = make_uint4(high[0].x, high[0].y, high[1].x, high[1].y);
    } else {
      unsigned char* const to = line + i * OCTETS * LINE + lane % 2 * 8;
      *reinterpret_cast<uint2*>(to + ((lane / 2) ^ row % 8) * 16) = high[i];
      *reinterpret_cast<uint2*>(to + ((lane / 2 + 4) ^ row % 8) * 16) = low[i];
    }
    if (lane == 0) scales[i * OCTETS] = power(top) * power(127 - 2 * TOP);  // may be subnormal
  }
}

template <int HALVES, typename T>
__device__ __forceinline__ void put(
    unsigned char* line, float*, const Narrowed<T> (&samples)[AHEAD], int lane, int row) {
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    store<T, 8>(reinterpret_cast<T*>(line + i * OCTETS * LINE + (lane ^ row % 8) * 16), samples[i].vector);
  }
}

// Addresses of a thread's channels of a stage.
template <typename T, int HALVES, int EACH>
struct Source {
  const char* from[READS<T, HALVES>];
  const SampleLines* all_sample_lines[READS<T, HALVES>];
  unsigned int bytes[READS<T, HALVES>];
  __device__ __forceinline__ Source(
      const Plan& plan, const T* lines, const T* zeros, const SampleLines* all_sample_lines, const Step& step, int octet, int lane) {
    const int start = step.chunk(plan) * DEPTH<HALVES>;
#pragma unroll
    for (int i = 0; i < READS<T, HALVES>; ++i) {
      const int channel = start + (i * LANES + lane) * VECTOR<T>;
      const bool exists = channel < plan.depth;
      const int last = min(channel, plan.depth - VECTOR<T>);
      const int position = plan.positions == 1 ? 0 : quotient(last, plan.padded) - quotient(start, plan.padded);
      this->all_sample_lines[i] = all_sample_lines + position * EACH + octet;
      bytes[i] = exists ? plan.line_depth * sizeof(T) : 0;
      from[i] = reinterpret_cast<const char*>(exists ? lines + channel : zeros);
    }
  }
};

template <typename T, int HALVES, int N, int R, int Q>
__device__ __forceinline__ void produce(
    const Ring<N, R, Q>& ring, const T* __restrict__ lines, const T* __restrict__ zeros,
    const unsigned char* __restrict__ packed, const SamplePosition* __restrict__ table, const Plan& plan, RingCursor& cursor,
    int first_column, int begin, int end) {
  constexpr int COLUMNS = Ring<N, R, Q>::COLUMNS, FILTER_BYTES = Ring<N, R, Q>::FILTER_BYTES;
  constexpr int ITEMS = Ring<N, R, Q>::ITEMS, EACH = 4 * ITEMS, TURNS = READS<T, HALVES>;
  const PositionLoader<HALVES, N, R, Q> loader(plan, ring, table, first_column);
  const int lane = loader.lane % LANES, octet = loader.lane / LANES, row = column_of(loader.warp, octet, 0);
  packed += static_cast<long long>(begin) * FILTER_BYTES;
  Step step(plan, begin), later = step;
  const auto run = [&](int stage) {  // begins a run: receives its positions and requests the next ones
    loader.receive();
    later.next_run(plan);
    if (stage - step.inner + plan.span < end) loader.request(later);
  };
  loader.request(step);
  run(begin);
  Source<T, HALVES, EACH> source(plan, lines, zeros, loader.all_sample_lines, step, octet, lane);
  CornerValues<T> corners[AHEAD];
  const auto load = [&](int i, int item) {
    corners[i].load_from(source.from[item % TURNS], source.bytes[item % TURNS], source.all_sample_lines[item % TURNS][item / TURNS * 4]);
  };
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) load(i, i);
#pragma unroll 1
  for (int stage = begin; stage < end; ++stage, cursor.next(plan.stages), packed += FILTER_BYTES) {
    unsigned char* const samples = ring.samples(cursor.slot) + row * LINE;
    float* const scales = ring.scales + cursor.slot * COLUMNS + row;
#pragma unroll
    for (int first = 0; first < ITEMS * TURNS; first += AHEAD) {
      const int next = (first + AHEAD) % (ITEMS * TURNS);
      if (next == 0 && stage + 1 < end) {
        if (++step.inner == plan.span) {
          step.next_run(plan);
          run(stage + 1);
        }
        source = Source<T, HALVES, EACH>(plan, lines, zeros, loader.all_sample_lines, step, octet, lane);
      }
      typename Sampled<T>::type sampled[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        sampled[i].blend(corners[i]);
        load(i, next + i);
      }
      if (first == 0) {
        mbarrier_wait(ring.empty + cursor.slot, cursor.parity ^ 1);
        if (threadIdx.x == CONSUMERS) {
          mbarrier_arrive_expect_tx(ring.full + cursor.slot, FILTER_BYTES);
          cp_async_bulk_load(shared_address(ring.filter(cursor.slot)), packed, FILTER_BYTES, ring.full + cursor.slot);
        }
      }
      put<HALVES>(samples + first / TURNS * OCTETS * LINE, scales + first / TURNS * OCTETS, sampled, lane, row);
    }
    fence_proxy_async();
    __syncwarp();
    if (loader.lane == 0) mbarrier_arrive(ring.full + cursor.slot);
  }
}

// Multiplies one stage of 64 pixels and N output channels. Floats: two halves per number, small products first, or one.
template <int HALVES, int SIZE>
__device__ __forceinline__ void multiply_stage(
    float (&sum)[SIZE], const unsigned char* filter, const unsigned char* samples, const float* scales, const float*) {
  const unsigned long long a = matrix_descriptor(samples), b = matrix_descriptor(filter);
  const __half* const halves = nullptr;
  float part[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) part[i] = 0;
  wgmma_fence();
  if constexpr (HALVES == 2) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) multiply(part, a + k + 4, b + k, k > 0, halves);
#pragma unroll
    for (int k = 0; k < 4; k += 2) multiply(part, a + k, b + k + 4, 1, halves);
  }
#pragma unroll
  for (int k = 0; k < 8 / HALVES; k += 2) multiply(part, a + k, b + k, HALVES == 2 || k > 0, halves);
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const float upper = scales[row], lower = scales[row + 8];
  wgmma_commit_and_wait(part);
#pragma unroll
  for (int i = 0; i < SIZE; ++i) sum[i] = fmaf(part[i], i / 2 % 2 == 0 ? upper : lower, sum[i]);
}

template <int HALVES, int SIZE, typename T>
__device__ __forceinline__ void multiply_stage(
    float (&sum)[SIZE], const unsigned char* filter, const unsigned char* samples, const float*, const T* type) {
  const unsigned long long a = matrix_descriptor(samples), b = matrix_descriptor(filter);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; k += 2) multiply(sum, a + k, b + k, 1, type);
  wgmma_commit_and_wait(sum);
}

// Adds the partial results of all splits of a tile, in order, in the last block to arrive; returns false in the others.
template <int SIZE>
__device__ __forceinline__ bool add_splits(
    float (&sum)[SIZE], float* partial, unsigned int* counter, int splits, unsigned int* shared) {
  float4* const parts = reinterpret_cast<float4*>(partial) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < SIZE / 4; ++i) {
    parts[(blockIdx.z * (SIZE / 4) + i) * CONSUMERS] =
        make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
  }
  __threadfence();
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  if (threadIdx.x == 0) {
    *shared = atomicAdd(counter, 1u);
    __threadfence();
  }
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  if (*shared != splits - 1) return false;
  __threadfence();
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
#pragma unroll
  for (int i = 0; i < SIZE; ++i) sum[i] = 0;
  for (int split = 0; split < splits; ++split) {
#pragma unroll
    for (int i = 0; i < SIZE / 4; ++i) {
      const float4 part = __ldcg(parts + (split * (SIZE / 4) + i) * CONSUMERS);
      sum[4 * i] += part.x, sum[4 * i + 1] += part.y, sum[4 * i + 2] += part.z, sum[4 * i + 3] += part.w;
    }
  }
  return true;
}

// Stores a tile's results, reordered from the tensor cores' layout to rows of pixels.
template <typename T, int N, int R, int Q>
__device__ __forceinline__ void write(
    const Ring<N, R, Q>& ring, const float (&sum)[N / 2], float row_scale, T* __restrict__ out, const Plan& plan,
    int first_column, int first_row, int row, int column) {
  constexpr int ROWS = Ring<N, R, Q>::ROWS, COLUMNS = Ring<N, R, Q>::COLUMNS, PITCH = COLUMNS + 4;
  float* const result = reinterpret_cast<float*>(ring.memory + plan.results);
  bar_sync<ALL_CONSUMERS, CONSUMERS>();  // the previous tile's results are stored, or the ring is no longer used
  if (sizeof(T) == 4 && threadIdx.x < ROWS) ring.row_scales[threadIdx.x] = row_scale;
  const int at = column + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    result[(row + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2) * PITCH + at + i / 2 % 2 * 8] = sum[i];
  }
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  const int across = COLUMNS / plan.strip;  // lanes follow a row of pixels
  const int own = threadIdx.x % COLUMNS, taken = own % across * plan.strip + own / across, mine = first_column + taken;
  if (mine >= plan.images * static_cast<int>(plan.conv.pixels.value)) return;
  const int image = quotient(mine, plan.conv.pixels), rows = min(ROWS, plan.rows - first_row);
  const int pixel = pixel_at(plan, remainder(mine, image, plan.conv.pixels));
  const long long pixels = plan.conv.pixels.value;
  T* const to =
      out + ((static_cast<long long>(image) * gridDim.y + blockIdx.y) * plan.rows + first_row) * pixels + pixel;
#pragma unroll 8
  for (int i = threadIdx.x / COLUMNS; i < rows; i += CONSUMERS / COLUMNS) {
    float value = result[i * PITCH + taken];
    if constexpr (sizeof(T) == 4) value *= ring.row_scales[i];
    to[i * pixels] = narrow<T>(value);
  }
}

// convolve: producer warps sample into a ring of stages, consumer warpgroups multiply.
// Layout   lines, packed filter, positions as `prepare` writes them
// Grid     blocks that share the tiles × groups × splits       Block  CONSUMERS + PRODUCERS
// Writes   out (N, Co, Ho, Wo); with splits, partial results and arrival counters, which it leaves zero
// Why      no column buffer is written; the next tile is sampled while results are stored
// T: type of all tensors; HALVES: of a float32 (1 for 16 bits); N: output channels of a warpgroup; R, Q: warpgroups by
// output channels and by pixels.
template <typename T, int HALVES, int N, int R, int Q>
__global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1) convolve(
    const T* __restrict__ lines, const T* __restrict__ zeros, const unsigned char* __restrict__ packed,
    const float* __restrict__ row_scales, const SamplePosition* __restrict__ positions, T* __restrict__ out, float* __restrict__ partial,
    unsigned int* __restrict__ counters, const __grid_constant__ Plan plan) {
  using Memory = Ring<N, R, Q>;
  constexpr int ROWS = Memory::ROWS, COLUMNS = Memory::COLUMNS, SIZE = N / 2;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Memory ring(memory, plan);
  const int stages = plan.chunks * plan.conv.taps;
  const int begin = blockIdx.z * plan.share, end = min(begin + plan.share, stages);
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int slot = 0; slot < plan.stages; ++slot) {
      mbarrier_init(ring.full + slot, PRODUCERS / 32 + 1);
      mbarrier_init(ring.empty + slot, CONSUMERS / 32);
    }
    fence_proxy_async();
  }
  __syncthreads();
  RingCursor cursor;
  if (threadIdx.x >= CONSUMERS) {
    setmaxnreg<REGISTERS, SAMPLING<T, HALVES, N>>();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
      const int column_tile = tile / plan.row_tiles, row_tile = tile - column_tile * plan.row_tiles;
      const long long first = static_cast<long long>(blockIdx.y * plan.row_tiles + row_tile) * stages;
      produce<T, HALVES, N, R, Q>(
          ring, lines + blockIdx.y * plan.depth, zeros, packed + first * Memory::FILTER_BYTES, positions, plan, cursor,
          column_tile * COLUMNS, begin, end);
    }
    return;
  }
  setmaxnreg<REGISTERS, 2 * REGISTERS - SAMPLING<T, HALVES, N>>();
  const int team = threadIdx.x / 128, row = team % R * N, column = team / R * 64;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const int column_tile = tile / plan.row_tiles, first_row = (tile - column_tile * plan.row_tiles) * ROWS;
    const int own_row = first_row + threadIdx.x;
    const bool scaled = sizeof(T) == 4 && threadIdx.x < ROWS && own_row < plan.rows;
    const float row_scale = scaled ? row_scales[blockIdx.y * plan.rows + own_row] : 0.0f;
    float sum[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sum[i] = 0;
#pragma unroll 1
    for (int left = end - begin; left > 0; --left, cursor.next(plan.stages)) {
      mbarrier_wait(ring.full + cursor.slot, cursor.parity);
      multiply_stage<HALVES>(
          sum, ring.filter(cursor.slot) + row * LINE, ring.samples(cursor.slot) + column * LINE,
          ring.scales + cursor.slot * COLUMNS + column, static_cast<const T*>(nullptr));
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty + cursor.slot);
    }
    if (plan.splits > 1) {
      const long long index = static_cast<long long>(blockIdx.y) * plan.tiles + tile;
      float* const mine = partial + index * plan.splits * ROWS * COLUMNS;
      if (!add_splits(sum, mine, counters + index, plan.splits, ring.counter)) continue;
    }
    write<T, N, R, Q>(ring, sum, row_scale, out, plan, column_tile * COLUMNS, first_row, row, column);
  }
}

#else

template <typename T, int HALVES, int N, int R, int Q>
__global__ void convolve(const T*, const T*, const unsigned char*, const float*, const SamplePosition*, T*, float*, unsigned int*, Plan) {
  __trap();  // other devices use a column buffer
}

#endif
