// What one block sends to another: words of 32 bits, each with a flag in one access, so that nothing need be fenced.
// Where nothing was sent the words are zero. Where a place is used again and again, flags say for which time it is.
#pragma once

template <typename A>
constexpr int WORDS = sizeof(A) / 4;

template <typename A>
__device__ __forceinline__ void publish(unsigned long long* to, const A& value, unsigned int flag = 1) {
  const unsigned int* const words = reinterpret_cast<const unsigned int*>(&value);
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) {
    const unsigned long long word = static_cast<unsigned long long>(flag) << 32 | words[i];
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to + i), "l"(word) : "memory");
  }
}

// Waits for what is sent.
template <typename A>
__device__ __forceinline__ A poll(const unsigned long long* from) {
  unsigned long long found[WORDS<A>];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < WORDS<A>; ++i) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found[i]) : "l"(from + i) : "memory");
    }
#pragma unroll
    for (int i = 0; i < WORDS<A>; ++i) all = all && found[i] >> 32 != 0;
  } while (!all);
  A value;
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) reinterpret_cast<unsigned int*>(&value)[i] = static_cast<unsigned int>(found[i]);
  return value;
}

// Waits for N, which lie `apart` places from each other, those before `end` of them.
template <int N, typename A>
__device__ __forceinline__ void poll_all(
    A (&values)[N], const unsigned long long* from, int apart, int end, unsigned int flag) {
  unsigned long long found[N][WORDS<A>];
  bool all;
  do {
    all = true;
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < WORDS<A>; ++i) {
        found[k][i] = static_cast<unsigned long long>(flag) << 32;
        if (k * apart >= end) continue;
        const unsigned long long* const place = from + k * apart * WORDS<A> + i;
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found[k][i]) : "l"(place) : "memory");
      }
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < WORDS<A>; ++i) all = all && found[k][i] >> 32 == flag;
    }
  } while (!all);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    unsigned int* const words = reinterpret_cast<unsigned int*>(&values[k]);
#pragma unroll
    for (int i = 0; i < WORDS<A>; ++i) words[i] = static_cast<unsigned int>(found[k][i]);
  }
}

// Leaves the place empty for the next launch.
template <typename A>
__device__ __forceinline__ void reset(unsigned long long* from) {
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) from[i] = 0;
}

// What blocks count together is in one word: 40 bits of what was found, 12 of how many blocks arrived, 12 of how many wait.
constexpr unsigned long long ARRIVED = 1ull << 40, WAITING = 1ull << 52;
constexpr unsigned int MOST_ARRIVED = WAITING / ARRIVED - 1;

// What all `blocks` found, where this one found anything: waits for them then, so the device has to hold them at once.
// The word is zero before the first of them comes and after the last is gone.
__device__ __forceinline__ unsigned long long sum_over_blocks(
    unsigned long long* word, unsigned long long found, unsigned int blocks) {
  const unsigned long long mine = ARRIVED + (found > 0 ? WAITING + found : 0);
  unsigned long long all = atomicAdd(word, mine) + mine;
  if (found == 0) {
    if (all == ARRIVED * blocks) *word = 0;
    return 0;
  }
  while ((all / ARRIVED & MOST_ARRIVED) < blocks) {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(all) : "l"(word) : "memory");
  }
  if (atomicAdd(word, 0 - WAITING) / WAITING == 1) *word = 0;
  return all % ARRIVED;
}

// Blocks that arrive and are gone, and what they found, are counted in the halves of a word, launch after launch, so that
// nobody has to set it back. What a block wrote before it arrived, in the thread that calls or before a barrier, is seen by
// those that poll all if it found anything.
__device__ __forceinline__ void arrive(unsigned long long* word, unsigned int found) {
  unsigned int* const halves = reinterpret_cast<unsigned int*>(word);
  if (found > 0) {
    atomicAdd(halves + 1, found);
    __threadfence();
  }
  atomicAdd(halves, 1u);
}

// What all `blocks` found that arrive in a launch. seen: what the caller saw in the last one.
__device__ __forceinline__ unsigned int wait_for_arrivals(
    const unsigned long long* word, unsigned long long* seen, unsigned int blocks) {
  const unsigned long long before = *seen;
  unsigned long long all;
  do {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(all) : "l"(word) : "memory");
  } while (static_cast<unsigned int>(all) - static_cast<unsigned int>(before) != blocks);
  *seen = all;
  const unsigned int found = static_cast<unsigned int>(all >> 32) - static_cast<unsigned int>(before >> 32);
  if (found > 0) __threadfence();
  return found;
}
