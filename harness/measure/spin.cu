// Holds a stream busy for a while, so that what is queued behind it starts without a gap.

__device__ __forceinline__ unsigned long long wall_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Spins for wait_ns; leaves nanoseconds and clock cycles spent in seen[2 * slot] and the next,
// from which the clock of the multiprocessors follows.
extern "C" __global__ void spin(unsigned long long wait_ns, unsigned long long* seen, unsigned int slot) {
  const unsigned long long begun = wall_ns();
  const long long cycles = clock64();
  unsigned long long now = begun;
  while (now - begun < wait_ns) now = wall_ns();
  seen[2 * slot] = now - begun;
  seen[2 * slot + 1] = static_cast<unsigned long long>(clock64() - cycles);
}

extern "C" __global__ void empty() {}

// When it ran.
extern "C" __global__ void stamp(unsigned long long* to) { *to = wall_ns(); }

// The ruler's arithmetic: four independent chains of multiply-adds, the same number of them anywhere.
extern "C" __global__ void multiply_add(float* out, unsigned int rounds) {
  float a = threadIdx.x, b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
#pragma unroll 8
  for (unsigned int round = 0; round < rounds; ++round) {
    a = fmaf(a, 0.5f, 1.0f);
    b = fmaf(b, 0.5f, 1.0f);
    c = fmaf(c, 0.5f, 1.0f);
    d = fmaf(d, 0.5f, 1.0f);
  }
  if (a + b + c + d < 0.0f) out[0] = a;  // never true; keeps the chains
}

// Lines that a kernel asked to be evicted last outlive any other traffic, however much: only their like displaces them.
// So `displace` overwrites a buffer with that priority, and `release` gives it up again.
extern "C" __global__ void displace(uint4* to, unsigned int words) {
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
#if __CUDA_ARCH__ >= 800
    unsigned long long last;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %1, %1, %1}, %2;" ::"l"(to + i), "r"(i), "l"(last) : "memory");
#else
    to[i] = make_uint4(i, i, i, i);
#endif
  }
}

extern "C" __global__ void release(char* from, unsigned int lines) {
#if __CUDA_ARCH__ >= 800
  for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += gridDim.x * blockDim.x) {
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(from + i * 128ull) : "memory");
  }
#endif
}
