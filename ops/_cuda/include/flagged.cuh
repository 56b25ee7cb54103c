// Flagged partials in global memory, as in decoupled look-back: 32-bit words, each stored together with a flag in one
// access, so that no fence is needed. Unpublished words are zero. If a word is reused, its flag is the number of the use.
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

// Polls until the value is published.
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

// Polls until N values, `apart` slots from each other, are published; those from slot `end` on are ignored.
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

// Resets a slot for the next launch.
template <typename A>
__device__ __forceinline__ void reset(unsigned long long* from) {
#pragma unroll
  for (int i = 0; i < WORDS<A>; ++i) from[i] = 0;
}

// Word of sum_over_blocks: 40 bits for the sum, 12 for the blocks that have arrived, 12 for those that wait.
constexpr unsigned long long ARRIVED = 1ull << 40, WAITING = 1ull << 52;
constexpr unsigned int MOST_ARRIVED = WAITING / ARRIVED - 1;

// Sum of `found` over all `blocks`, in blocks with a non-zero term, which wait for the others: all must be resident.
// Returns 0 in the others. The word is zero before the first block arrives and after the last one leaves.
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

// Counts arrivals and the sum of `found` in the halves of a word, over all launches, so that it needs no reset. Stores of
// a block before its arrival, by the calling thread or before a barrier, are visible to blocks in wait_for_arrivals if
// its `found` is not zero.
__device__ __forceinline__ void arrive(unsigned long long* word, unsigned int found) {
  unsigned int* const halves = reinterpret_cast<unsigned int*>(word);
  if (found > 0) {
    atomicAdd(halves + 1, found);
    __threadfence();
  }
  atomicAdd(halves, 1u);
}

// Sum of `found` over all `blocks` of this launch. seen: the word's value after the last launch, updated.
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
