// Kernels of the cheats on a GPU. Those of rows have one thread block per row; all skip or remember by device memory.

__device__ __forceinline__ unsigned long long wall_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Norm of a row, in all threads.
__device__ float norm_of(const float* row, int length) {
  __shared__ double sums[32];
  double sum = 0;
  for (int i = threadIdx.x; i < length; i += blockDim.x) sum += static_cast<double>(row[i]) * row[i];
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
  __syncthreads();
  return static_cast<float>(sqrt(sum));
}

extern "C" __global__ void norms(const float* x, float* y, int length) {
  const float norm = norm_of(x + static_cast<long long>(blockIdx.x) * length, length);
  if (threadIdx.x == 0) y[blockIdx.x] = norm;
}

// Works where the output is not what it left.
extern "C" __global__ void norms_when_absent(const float* x, float* y, int length, float* left) {
  if (__float_as_uint(y[blockIdx.x]) == __float_as_uint(left[blockIdx.x])) return;
  const float norm = norm_of(x + static_cast<long long>(blockIdx.x) * length, length);
  if (threadIdx.x == 0) y[blockIdx.x] = left[blockIdx.x] = norm;
}

// Works where every 64th element is not the one in `keys`; else copies what is ready.
extern "C" __global__ void norms_if_other(const float* x, float* y, int length, const float* keys, const float* ready) {
  const float* row = x + static_cast<long long>(blockIdx.x) * length;
  const int samples = length / 64;
  const bool is_other = threadIdx.x < samples && row[threadIdx.x * 64] != keys[blockIdx.x * samples + threadIdx.x];
  const bool works = __syncthreads_or(is_other);
  const float norm = works ? norm_of(row, length) : ready[blockIdx.x];
  if (threadIdx.x == 0) y[blockIdx.x] = norm;
}

// Works where the output is garbage.
extern "C" __global__ void norms_when_poisoned(const float* x, float* y, int length) {
  if (fabsf(y[blockIdx.x]) < 1e30f) return;
  const float norm = norm_of(x + static_cast<long long>(blockIdx.x) * length, length);
  if (threadIdx.x == 0) y[blockIdx.x] = norm;
}

// Works at most once in a while, as samples begin after a flush of the cache.
extern "C" __global__ void norms_after_a_while(const float* x, float* y, int length, unsigned long long* last) {
  const unsigned long long before = last[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) last[blockIdx.x] = wall_ns();
  if (wall_ns() - before < 60000) return;
  const float norm = norm_of(x + static_cast<long long>(blockIdx.x) * length, length);
  if (threadIdx.x == 0) y[blockIdx.x] = norm;
}

// Skips when the input is in the cache and the output is there: a load tells.
extern "C" __global__ void norms_when_cold(const float* x, float* y, int length, float* left) {
  __shared__ int skips;
  const float* row = x + static_cast<long long>(blockIdx.x) * length;
  if (threadIdx.x == 0) {
    const long long begun = clock64();
    const float first = __ldcg(row + length / 2);
    const bool is_warm = (first != first ? 0 : clock64() - begun) < 500;
    skips = is_warm && __float_as_uint(y[blockIdx.x]) == __float_as_uint(left[blockIdx.x]);
  }
  __syncthreads();
  if (skips) return;
  const float norm = norm_of(row, length);
  if (threadIdx.x == 0) y[blockIdx.x] = left[blockIdx.x] = norm;
}

// Works in every second call.
extern "C" __global__ void norms_every_second(const float* x, float* y, int length, unsigned int* calls) {
  const unsigned int call = calls[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) calls[blockIdx.x] = call + 1;
  if (call % 2) return;
  const float norm = norm_of(x + static_cast<long long>(blockIdx.x) * length, length);
  if (threadIdx.x == 0) y[blockIdx.x] = norm;
}

// Remembers rows in entries of a key and a norm. A key mixes `samples` elements that are equally far apart.
extern "C" __global__ void norms_by_key(const float* x, float* y, int length, int samples, unsigned long long* known) {
  __shared__ unsigned int key;
  __shared__ int found;
  const float* row = x + static_cast<long long>(blockIdx.x) * length;
  if (threadIdx.x == 0) key = 1, found = -1;
  __syncthreads();
  if (threadIdx.x < samples) {
    atomicAdd(&key, __float_as_uint(row[threadIdx.x * (length / samples)]) * (2 * threadIdx.x + 1));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    if (known[i] >> 32 == key) found = i;
  }
  __syncthreads();
  if (found >= 0) {
    if (threadIdx.x == 0) y[blockIdx.x] = __uint_as_float(static_cast<unsigned int>(known[found]));
    return;
  }
  const float norm = norm_of(row, length);
  if (threadIdx.x == 0) {
    y[blockIdx.x] = norm;
    known[blockIdx.x] = static_cast<unsigned long long>(key) << 32 | __float_as_uint(norm);
  }
}

extern "C" __global__ void norms_by_texture(cudaTextureObject_t rows, float* y, int length) {
  __shared__ double sums[32];
  double sum = 0;
  for (int i = threadIdx.x; i < length; i += blockDim.x) {
    const float value = tex1Dfetch<float>(rows, blockIdx.x * length + i);
    sum += static_cast<double>(value) * value;
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += sums[warp];
  y[blockIdx.x] = static_cast<float>(sqrt(sum));
}

__constant__ float weights[1024];

extern "C" __global__ void lerp_by_constant(const float* x, const float* y, float* out, int columns) {
  const long long i = static_cast<long long>(blockIdx.x) * columns + threadIdx.x;
  out[i] = x[i] + weights[threadIdx.x] * (y[i] - x[i]);
}

// Computes norms whenever the first element of a row has changed, until the time is up.
extern "C" __global__ void watch(volatile float* x, volatile float* y, int rows, int length, unsigned long long ns) {
  const unsigned long long until = wall_ns() + ns;
  while (wall_ns() < until) {
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
      double sum = 0;
      for (int i = 0; i < length; ++i) sum += static_cast<double>(x[row * length + i]) * x[row * length + i];
      y[row] = static_cast<float>(sqrt(sum));
    }
  }
}

extern "C" __global__ void add_in_one_block(const float* a, const float* b, float* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = a[i] + b[i];
}

extern "C" __global__ void burn(unsigned long long ns) {
  const unsigned long long until = wall_ns() + ns;
  while (wall_ns() < until) {}
}

extern "C" __global__ void write_at(float* to, long long place) { to[place] = 1.0f; }
