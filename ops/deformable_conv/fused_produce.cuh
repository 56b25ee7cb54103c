// Producer warps of the fused deformable convolution: they sample x into a ring of stages in shared memory.
#pragma once
#include "fused_plan.cuh"
#include "halves.cuh"
#include "warpgroup.cuh"

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
      cp_async_zfill<16>(positions + i, valid ? table + static_cast<long long>(entry) * total + column : table, valid);
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

#endif
