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
