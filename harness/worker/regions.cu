// Operations on regions of arrays: each is exchanged with another, filled, or compared with another, in words of 1 to 8 bytes.
// Grid, Block   any × operations: the threads of row y of the grid stride over the words of operation y
// Region        `rows` runs of `length` words, `pitch` words apart, the first at word `offset`
// Needs         regions that are exchanged or filled do not overlap
enum Kind : unsigned long long { EXCHANGE, FILL, COMPARE };
struct Moved {
  unsigned long long inner, size, first, second, length;
};
struct Operation {
  Kind kind;
  unsigned long long bytes, address, other, offset, rows, pitch, length, value;
  Moved moved;
};
struct Operations {
  Operation operation[36];
};

// Place of a word after two ranges of `length` slices were exchanged along an axis of `size` slices of `inner` words.
__device__ __forceinline__ unsigned long long moved_to(unsigned long long at, const Moved& moved) {
  if (moved.length == 0) return at;
  const unsigned long long slice = at / moved.inner % moved.size, distance = (moved.second - moved.first) * moved.inner;
  if (slice - moved.first < moved.length) return at + distance;
  if (slice - moved.second < moved.length) return at - distance;
  return at;
}

template <typename Word>
__device__ void perform_one(const Operation& operation, unsigned int* differ) {
  Word* const words = reinterpret_cast<Word*>(operation.address);
  Word* const others = reinterpret_cast<Word*>(operation.other);
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  const unsigned long long count = operation.rows * operation.length;
  bool differs = false;
  for (unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    const unsigned long long at = operation.offset + i / operation.length * operation.pitch + i % operation.length;
    if (operation.kind == EXCHANGE) {
      const Word kept = words[at];
      words[at] = others[at];
      others[at] = kept;
    } else if (operation.kind == FILL) {
      words[at] = static_cast<Word>(operation.value);
    } else {
      differs |= words[at] != others[moved_to(at, operation.moved)];
    }
  }
  if (differs) differ[0] = 1;
}

// Sets differ[0] to 1 if a word differs in a comparison, and leaves it alone otherwise.
extern "C" __global__ void perform(Operations operations, unsigned int* differ) {
  const Operation& operation = operations.operation[blockIdx.y];
  if (operation.bytes == 8) {
    perform_one<unsigned long long>(operation, differ);
  } else if (operation.bytes == 4) {
    perform_one<unsigned int>(operation, differ);
  } else if (operation.bytes == 2) {
    perform_one<unsigned short>(operation, differ);
  } else {
    perform_one<unsigned char>(operation, differ);
  }
}
