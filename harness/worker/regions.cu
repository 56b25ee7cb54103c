// Regions of arrays, exchanged, filled, or compared with those of another array.
// Grid, Block   any: threads stride over the words of each region
// Region        `rows` runs of `length` words, `pitch` words apart, the first at word `offset`
struct Region {
  unsigned long long offset, rows, pitch, length;
};
struct Regions {
  Region region[12];
  unsigned long long count;
};

template <typename Visit>
__device__ __forceinline__ void for_each_word(const Regions& regions, Visit visit) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long number = 0; number < regions.count; ++number) {
    const Region region = regions.region[number];
    const unsigned long long words = region.rows * region.length;
    for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < words;
         i += step) {
      visit(region.offset + i / region.length * region.pitch + i % region.length);
    }
  }
}

// Exchanges each word of the regions with the one `distance` words further.
template <typename Word>
__global__ void exchange(Word* words, Regions regions, unsigned long long distance) {
  for_each_word(regions, [=](unsigned long long at) {
    const Word kept = words[at];
    words[at] = words[at + distance];
    words[at + distance] = kept;
  });
}

// Fills the regions with the low bits of `value`.
template <typename Word>
__global__ void fill(Word* words, Regions regions, unsigned int value) {
  for_each_word(regions, [=](unsigned long long at) { words[at] = static_cast<Word>(value); });
}

// Sets differ[0] to 1 if a word of the regions differs between two arrays, and leaves it alone otherwise.
template <typename Word>
__global__ void compare(const Word* got, const Word* wanted, Regions regions, unsigned int* differ) {
  bool differs = false;
  for_each_word(regions, [&](unsigned long long at) { differs |= got[at] != wanted[at]; });
  if (differs) differ[0] = 1;
}
