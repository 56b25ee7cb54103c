// deformable_conv without a column buffer: samples go to shared memory and from there through the tensor cores, on sm_90a.
//
// `prepare` lays x out channels last and the filter as the stages in which it is wanted, and finds where samples lie;
// `convolve` computes 64 Q pixels x N R output channels a block. Eight warps sample, Q x R groups of four multiply; a
// ring of stages in shared memory lies between. A stage is one tap and 128 bytes of channels.
//
// float32 is taken apart into two halves of 11 bits each; three of the four products are summed. To have it within the
// range of halves it is scaled by powers of two: the filter so that the largest of each row, samples so that the largest
// of each pixel's stage lies in [2^14, 2^15). Factors within 2^-17 of the largest lose nothing, smaller ones are exact
// to 2^-40 of it; an infinite one gives NaN. A stage is summed by itself and then added with rounding, as tensor cores
// truncate. Where 11 bits are enough, as TF32's are, the first halves are all: HALVES is 1, a stage has twice the channels.

#include "halves.cuh"
#include "lines.cuh"
#include "sampling.cuh"
#include "warpgroup.cuh"

constexpr int CONSUMERS = 256, PRODUCERS = 256;  // threads; those that multiply arrive first
constexpr int LINE = 128;      // bytes of a row of a stage: 64 elements of 16 bits, or HALVES halves of each float
constexpr int LANES = 8;       // lanes that share a sample's place, 16 bytes of channels each
constexpr int OCTETS = PRODUCERS / LANES;
constexpr int AHEAD = 2;       // samples in flight per thread
constexpr int LOADS = 16;      // likewise, of the filter
constexpr int ALL_CONSUMERS = 1;  // named barrier
constexpr int ROW_SCALES = 1024;  // bytes for those of a block

constexpr int REGISTERS = 128;  // of a thread, on average
template <typename T, int HALVES, int N>  // of one that samples; float32 has two sets of sums
constexpr int SAMPLING = sizeof(T) == 2 ? 152 : HALVES == 2 ? 96 : N == 128 ? 104 : 112;

struct Plan {
  Conv conv;
  int images, rows, row_tiles;   // rows: output channels of a group
  int group_channels;            // of x, as given
  int segment;                   // channels that share group and deformable group
  int depth, line_depth;         // channels of a group and of a line of x as stored out, segments padded
  int chunks, span;              // stages of a tap; those that follow each other before the next tap
  int share, splits;             // stages of a split
  int places;                    // segments that a stage touches, at most
  int stages;                    // of the ring
  int tiles;                     // of rows within tiles of columns
  int results;                   // bytes from the ring on where a tile's results are put in order
  int strip;                     // rows of pixels that tiles take column by column: neighbours share what they read
  Divisor padded;                // channels of a segment as stored out
  Divisor per_group;             // channels of a deformable group
  Divisor strip_pixels;
  Divisor taps, visit;           // those of conv; chunks of a span
};

// Which pixel of an image is the index-th to be taken.
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
constexpr int READS = DEPTH<HALVES> / LANES / VECTOR<T>;  // of a lane, for its channels of a stage at one corner

// Which channel of a stage is the j-th of the part-th eight: as lanes that read twice have them.
template <typename T, int HALVES>
__device__ __forceinline__ int channel_of(int part, int j) {
  constexpr int EACH = 8 / READS<T, HALVES>;
  return j / EACH * (LANES * EACH) + part * EACH + j % EACH;
}

struct alignas(16) Place {  // of one sample: its upper left corner's line times 16, and a bit for each corner that there is
  int corner;
  float lh, lw, mask;
};

struct Spot {  // the same: lines of x, weights
  uint4 line;
  float4 weight;
};

// Tap and chunk of channels of a stage: a few chunks, tap by tap, then the next.
struct Step {
  int inner, tap, super;

  __device__ __forceinline__ Step(const Plan& plan, int stage) {
    const int visit = stage / plan.span;
    inner = stage - visit * plan.span;
    super = visit / plan.conv.taps;
    tap = visit - super * plan.conv.taps;
  }
  __device__ __forceinline__ int chunk(const Plan& plan) const { return super * plan.span + inner; }

  __device__ __forceinline__ void next_visit(const Plan& plan) {
    inner = 0;
    if (++tap == plan.conv.taps) {
      tap = 0;
      ++super;
    }
  }
};

// One row of the filter: its stages' lines of 128 bytes, 16 bytes each moved by the row so that eight rows meet no bank twice.
template <typename T, int HALVES>
__device__ __forceinline__ void vector(
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
  constexpr int PARTS = DEPTH<HALVES> / 8;  // eights of channels of a stage
  unsigned char* const to =
      packed + (static_cast<long long>(group * plan.row_tiles + tile) * stages * tile_rows + within) * LINE;
  const bool padded = plan.segment != plan.padded.value;
  for (int i = threadIdx.x; i < stages * PARTS; i += 256) {  // neighbours take the taps of a channel, as they lie
    const int piece = quotient(i, plan.taps), tap = remainder(i, piece, plan.taps), part = piece % PARTS;
    const int chunk = piece / PARTS, super = quotient(chunk, plan.visit);
    const int stage = (super * plan.conv.taps + tap) * plan.span + remainder(chunk, super, plan.visit);
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
    const T* __restrict__ offset, const T* __restrict__ mask, Place* __restrict__ places, const Plan& plan, int index) {
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
  places[index] = {(image * area + first) * 16 + flags, sample.lh, sample.lw, sample.mask};
}

// x (N, C, H, W) to lines (N, H, W, channels) and one of zeros; filter to packed and its rows' scales; places of
// samples (deformable groups, taps, pixels of all images). In 16 bits it mostly waits: as many blocks as there may be.
template <typename T, int HALVES>
__global__ void __launch_bounds__(256, sizeof(T) == 2 ? 6 : 4) prepare(
    const T* __restrict__ x, const T* __restrict__ filter, const T* __restrict__ offset, const T* __restrict__ mask,
    T* __restrict__ lines, T* __restrict__ zeros, unsigned char* __restrict__ packed, float* __restrict__ scales,
    Place* __restrict__ places, int filter_rows, int pieces, int tile_rows, const __grid_constant__ Plan plan) {
  const int block = blockIdx.x;
  if (block < filter_rows) {
    vector<T, HALVES>(filter, packed, scales, plan, tile_rows, block);
  } else if (block < filter_rows + pieces) {
    const Lines of = {
        plan.conv.height * plan.conv.width, plan.conv.channels, plan.segment, plan.line_depth, plan.padded};
    to_channels_last(x, lines, static_cast<float*>(nullptr), of, block - filter_rows);
  } else if (block > filter_rows + pieces) {
    locate(offset, mask, places, plan, (block - filter_rows - pieces - 1) * 256 + threadIdx.x);
  } else {
    for (int i = threadIdx.x; i < plan.line_depth; i += 256) zeros[i] = T(0.0f);
  }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int N, int R, int Q>
struct Ring {  // shared memory of a block
  static constexpr int ROWS = N * R, COLUMNS = 64 * Q, ITEMS = COLUMNS / OCTETS;
  static constexpr int FILTER_BYTES = ROWS * LINE, STAGE_BYTES = FILTER_BYTES + COLUMNS * LINE;
  float* row_scales;  // (ROWS): what undoes the filter's scaling
  unsigned char* memory;
  Spot* spots;     // (warps that sample, places, 4 ITEMS): of the chunks in flight
  Place* places;   // likewise: of the next
  float* scales;   // (stages, COLUMNS): what undoes the samples' scaling
  unsigned long long *full, *empty;
  unsigned int* counter;

  __device__ __forceinline__ Ring(unsigned char* start, const Plan& plan) : memory(start + ROW_SCALES) {
    row_scales = reinterpret_cast<float*>(start);
    spots = reinterpret_cast<Spot*>(memory + plan.stages * STAGE_BYTES);
    places = reinterpret_cast<Place*>(spots + plan.places * COLUMNS);
    scales = reinterpret_cast<float*>(places + plan.places * COLUMNS);
    full = reinterpret_cast<unsigned long long*>(scales + plan.stages * COLUMNS);
    empty = full + plan.stages;
    counter = reinterpret_cast<unsigned int*>(empty + plan.stages);
  }
  __device__ __forceinline__ unsigned char* filter(int slot) const { return memory + slot * STAGE_BYTES; }
  __device__ __forceinline__ unsigned char* samples(int slot) const { return filter(slot) + FILTER_BYTES; }
};

// Slots of the ring in to_channels_last, and which time round it is.
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

// Which column of the block's the octet of a warp has as its i-th. Octets of half a warp are four apart: their banks differ.
__device__ __forceinline__ int column_of(int warp, int octet, int i) {
  return octet % 2 * 4 + octet / 2 + warp % 2 * 2 + warp / 2 * 8 + i * OCTETS;
}

// The places of a warp's samples: looked up one visit (a tap, some chunks of channels) ahead.
template <int HALVES, int N, int R, int Q>
struct Scout {
  static constexpr int EACH = 4 * Ring<N, R, Q>::ITEMS;
  const Plan& plan;
  const Place* table;
  Spot* spots;
  Place* places;
  int first_column, segments, warp, lane;

  __device__ __forceinline__ Scout(const Plan& plan, const Ring<N, R, Q>& ring, const Place* table, int first_column)
      : plan(plan), table(table), first_column(first_column) {
    segments = plan.group_channels / plan.segment;
    warp = threadIdx.x / 32 - CONSUMERS / 32;
    lane = threadIdx.x % 32;
    spots = ring.spots + warp * plan.places * EACH;
    places = ring.places + warp * plan.places * EACH;
  }

  __device__ __forceinline__ void publish(const Step& step) const {
    const int total = plan.images * plan.conv.pixels.value;
    const int first = blockIdx.y * segments + quotient(step.chunk(plan) * DEPTH<HALVES>, plan.padded);
#pragma unroll 1
    for (int i = lane; i < plan.places * EACH; i += 32) {
      const int segment = first + i / EACH, column = first_column + column_of(warp, i % 4, i % EACH / 4);
      const bool valid = segment < (blockIdx.y + 1) * segments && column < total;
      const int entry = quotient(segment * plan.segment, plan.per_group) * plan.conv.taps + step.tap;
      cp_async_zfill(places + i, valid ? table + static_cast<long long>(entry) * total + column : table, valid);
    }
  }

  __device__ __forceinline__ void receive() const {
    const int zeros = plan.images * plan.conv.height * plan.conv.width, width = plan.conv.width;
    cp_async_wait_all();
    __syncwarp();  // no lane wants the old ones
#pragma unroll 1
    for (int i = lane; i < plan.places * EACH; i += 32) {
      const Place place = places[i];
      const int flags = place.corner & 15, first = place.corner >> 4;
      const float nothing = flags != 0 ? 0.0f : 0.0f * place.mask;  // an inf or NaN as mask shows where there is no sample
      const auto line = [&](int corner) {
        return flags & 1 << corner ? first + corner / 2 * width + corner % 2 : zeros;
      };
      const auto weight = [&](int corner, float side) { return flags & 1 << corner ? side * place.mask : nothing; };
      const float uh = 1 - place.lh, uw = 1 - place.lw;
      spots[i].line = make_uint4(line(0), line(1), line(2), line(3));
      spots[i].weight = make_float4(
          weight(0, uh * uw), weight(1, uh * place.lw), weight(2, place.lh * uw), weight(3, place.lh * place.lw));
    }
    __syncwarp();
  }
};

template <typename T>
struct Corners {
  Vector<T, VECTOR<T>> at[4];
  float4 weight;
  __device__ __forceinline__ void load_from(const char* from, unsigned int bytes, const Spot& spot) {
    const uint4 line = spot.line;
    const unsigned int lines[4] = {line.x, line.y, line.z, line.w};
    weight = spot.weight;
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

// Samples of a pixel's channels, and how they get into their lines.
struct Whole {  // of float32
  float at[4];
  __device__ __forceinline__ void blend(const Corners<float>& corners) {
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = corners.blend(i);
  }
};

template <typename T>
struct Narrowed {
  Vector<T, 8> vector;
  __device__ __forceinline__ void blend(const Corners<T>& corners) {
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

// Samples OCTETS lines apart: taken apart and scaled by what eight lanes have in common.
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

// Where a thread loads its channels of a stage from.
template <typename T, int HALVES, int EACH>
struct Source {
  const char* from[READS<T, HALVES>];
  const Spot* spots[READS<T, HALVES>];
  unsigned int bytes[READS<T, HALVES>];
  __device__ __forceinline__ Source(
      const Plan& plan, const T* lines, const T* zeros, const Spot* spots, const Step& step, int octet, int lane) {
    const int start = step.chunk(plan) * DEPTH<HALVES>;
#pragma unroll
    for (int i = 0; i < READS<T, HALVES>; ++i) {
      const int channel = start + (i * LANES + lane) * VECTOR<T>;
      const bool exists = channel < plan.depth;
      const int last = min(channel, plan.depth - VECTOR<T>);
      const int place = plan.places == 1 ? 0 : quotient(last, plan.padded) - quotient(start, plan.padded);
      this->spots[i] = spots + place * EACH + octet;
      bytes[i] = exists ? plan.line_depth * sizeof(T) : 0;
      from[i] = reinterpret_cast<const char*>(exists ? lines + channel : zeros);
    }
  }
};

template <typename T, int HALVES, int N, int R, int Q>
__device__ __forceinline__ void produce(
    const Ring<N, R, Q>& ring, const T* __restrict__ lines, const T* __restrict__ zeros,
    const unsigned char* __restrict__ packed, const Place* __restrict__ table, const Plan& plan, Turn& to_channels_last,
    int first_column, int begin, int end) {
  constexpr int COLUMNS = Ring<N, R, Q>::COLUMNS, FILTER_BYTES = Ring<N, R, Q>::FILTER_BYTES;
  constexpr int ITEMS = Ring<N, R, Q>::ITEMS, EACH = 4 * ITEMS, TURNS = READS<T, HALVES>;
  const Scout<HALVES, N, R, Q> scout(plan, ring, table, first_column);
  const int lane = scout.lane % LANES, octet = scout.lane / LANES, row = column_of(scout.warp, octet, 0);
  packed += static_cast<long long>(begin) * FILTER_BYTES;
  Step step(plan, begin), later = step;
  const auto visit = [&](int stage) {  // its first, or where this block begins; the next one's places are sent for
    scout.receive();
    later.next_visit(plan);
    if (stage - step.inner + plan.span < end) scout.publish(later);
  };
  scout.publish(step);
  visit(begin);
  Source<T, HALVES, EACH> source(plan, lines, zeros, scout.spots, step, octet, lane);
  Corners<T> corners[AHEAD];
  const auto load = [&](int i, int item) {
    corners[i].load_from(source.from[item % TURNS], source.bytes[item % TURNS], source.spots[item % TURNS][item / TURNS * 4]);
  };
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) load(i, i);
#pragma unroll 1
  for (int stage = begin; stage < end; ++stage, to_channels_last.next(plan.stages), packed += FILTER_BYTES) {
    unsigned char* const samples = ring.samples(to_channels_last.slot) + row * LINE;
    float* const scales = ring.scales + to_channels_last.slot * COLUMNS + row;
#pragma unroll
    for (int first = 0; first < ITEMS * TURNS; first += AHEAD) {
      const int next = (first + AHEAD) % (ITEMS * TURNS);
      if (next == 0 && stage + 1 < end) {
        if (++step.inner == plan.span) {
          step.next_visit(plan);
          visit(stage + 1);
        }
        source = Source<T, HALVES, EACH>(plan, lines, zeros, scout.spots, step, octet, lane);
      }
      typename Sampled<T>::type sampled[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        sampled[i].blend(corners[i]);
        load(i, next + i);
      }
      if (first == 0) {
        mbarrier_wait(ring.empty + to_channels_last.slot, to_channels_last.parity ^ 1);
        if (threadIdx.x == CONSUMERS) {
          mbarrier_arrive_expect_tx(ring.full + to_channels_last.slot, FILTER_BYTES);
          cp_async_bulk_load(shared_address(ring.filter(to_channels_last.slot)), packed, FILTER_BYTES, ring.full + to_channels_last.slot);
        }
      }
      put<HALVES>(samples + first / TURNS * OCTETS * LINE, scales + first / TURNS * OCTETS, sampled, lane, row);
    }
    fence_proxy_async();
    __syncwarp();
    if (scout.lane == 0) mbarrier_arrive(ring.full + to_channels_last.slot);
  }
}

// One stage of 64 pixels and N output channels. Floats: two halves a number, the small products first, or one half.
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

// Adds up what the splits of a tile have, in order, in the block that is last to have its own; false in the others.
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
  if (threadIdx.x == 0) *counter = 0;  // as the next run wants it
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

// A tile's results, which threads have as the tensor cores left them, to the output by rows of pixels.
template <typename T, int N, int R, int Q>
__device__ __forceinline__ void write(
    const Ring<N, R, Q>& ring, const float (&sum)[N / 2], float row_scale, T* __restrict__ out, const Plan& plan,
    int first_column, int first_row, int row, int column) {
  constexpr int ROWS = Ring<N, R, Q>::ROWS, COLUMNS = Ring<N, R, Q>::COLUMNS, PITCH = COLUMNS + 4;
  float* const result = reinterpret_cast<float*>(ring.memory + plan.results);
  bar_sync<ALL_CONSUMERS, CONSUMERS>();  // those of the tile before are out; of a block with one tile, the ring is used no more
  if (sizeof(T) == 4 && threadIdx.x < ROWS) ring.row_scales[threadIdx.x] = row_scale;
  const int at = column + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    result[(row + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2) * PITCH + at + i / 2 % 2 * 8] = sum[i];
  }
  bar_sync<ALL_CONSUMERS, CONSUMERS>();
  const int across = COLUMNS / plan.strip;  // lanes run along a row of pixels
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

// T: type of all tensors; HALVES: of a float32 (1 for 16 bits); N: output channels of a group of warps that multiplies;
// R, Q: such groups by output channels and by pixels. Grid: blocks that share the tiles, groups, splits. Samples of a
// block's next tile are on their way while its results are written.
template <typename T, int HALVES, int N, int R, int Q>
__global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 1) convolve(
    const T* __restrict__ lines, const T* __restrict__ zeros, const unsigned char* __restrict__ packed,
    const float* __restrict__ row_scales, const Place* __restrict__ places, T* __restrict__ out, float* __restrict__ partial,
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
  Turn to_channels_last;
  if (threadIdx.x >= CONSUMERS) {
    setmaxnreg<REGISTERS, SAMPLING<T, HALVES, N>>();
#pragma unroll 1
    for (int tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
      const int column_tile = tile / plan.row_tiles, row_tile = tile - column_tile * plan.row_tiles;
      const long long first = static_cast<long long>(blockIdx.y * plan.row_tiles + row_tile) * stages;
      produce<T, HALVES, N, R, Q>(
          ring, lines + blockIdx.y * plan.depth, zeros, packed + first * Memory::FILTER_BYTES, places, plan, to_channels_last,
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
    for (int left = end - begin; left > 0; --left, to_channels_last.next(plan.stages)) {
      mbarrier_wait(ring.full + to_channels_last.slot, to_channels_last.parity);
      multiply_stage<HALVES>(
          sum, ring.filter(to_channels_last.slot) + row * LINE, ring.samples(to_channels_last.slot) + column * LINE,
          ring.scales + to_channels_last.slot * COLUMNS + column, static_cast<const T*>(nullptr));
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty + to_channels_last.slot);
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
__global__ void convolve(const T*, const T*, const unsigned char*, const float*, const Place*, T*, float*, unsigned int*, Plan) {
  __trap();  // other devices take columns and a product
}

#endif
