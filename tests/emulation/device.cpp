// Runs the blocks of a launch: in any order, some of them at once, a fibre for each thread, which goes on until it waits.
#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "cuda.h"

constexpr int WARP = 32;
constexpr size_t STACK = 40'000;  // no power of two: stacks would lie on the same lines of the cache
constexpr int PATIENCE = 200;     // turns in which nobody gets further, where few blocks are under way
constexpr size_t PART = 512;      // bytes of shared memory that are exchanged or left alone together
constexpr char FRESH = static_cast<char>(0xff);  // NaN: shared memory that nothing was written to

enum State : char { READY, WAITING, POLLING, DONE };

struct Fibre {
  Place place;
  State* state;  // of its block
  int warp, lane;
  bool started = false;
  std::unique_ptr<char[]> stack{new char[STACK]};
  jmp_buf at;
};

struct Warp {
  uint64_t given[WARP];
  int steps[WARP], come = 0;
};

struct Block {
  std::vector<Fibre> fibres;
  std::vector<State> states;  // of the fibres, apart from them: a turn looks at all of them
  std::vector<Warp> warps;
  std::vector<char> shared;
  std::vector<bool> written;  // parts of `shared`; others are fresh
  int left, at_barrier, late;  // a warp that goes on when nothing else does
  bool any;                    // thread gave what is not zero
};

Place* place_of_thread;
static Fibre* fibre;
static Block* block;
static jmp_buf scheduler, abandoned;
static char complaint[256];
static void (*kernel)(void**);
static void** arguments;
static uint64_t randomness;

static unsigned int random_below(unsigned int end) {
  randomness = randomness * 6364136223846793005u + 1442695040888963407u;
  return (randomness >> 33) % end;
}

static void fail(const char* why) {
  const Dim thread = place_of_thread->thread, at = place_of_thread->block;
  snprintf(complaint, sizeof complaint, "%s: thread (%u, %u) of block (%u, %u, %u)", why, thread.x, thread.y, at.x,
           at.y, at.z);
  _longjmp(abandoned, 1);
}

// What -fsanitize=alignment calls: an access as wide as its pack, where the pack is not aligned.
extern "C" void __ubsan_handle_type_mismatch_v1_abort(void*, void*) { fail("misaligned access"); }

static void pause(State state) {
  *fibre->state = state;
  if (!_setjmp(fibre->at)) _longjmp(scheduler, 1);
}

static void begin() {
  for (;;) {  // a fibre serves one block after another
    kernel(arguments);
    pause(DONE);
  }
}

static void resume(Fibre& next) {
  fibre = &next;
  place_of_thread = &next.place;
  if (_setjmp(scheduler)) return;
  if (next.started) _longjmp(next.at, 1);
  next.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = next.stack.get();
  context.uc_stack.ss_size = STACK;
  makecontext(&context, begin, 0);
  setcontext(&context);
}

static void open_barrier() {
  if (block->at_barrier < block->left) return;
  block->at_barrier = 0;
  block->late = random_below(block->warps.size() + 4);  // or none
  for (State& other : block->states) {
    if (other == WAITING) other = READY;
  }
}

void __syncthreads() {
  block->at_barrier += 1;
  *fibre->state = WAITING;
  open_barrier();
  pause(*fibre->state);
}

int __syncthreads_or(int given) {
  __syncthreads();
  block->any = false;
  __syncthreads();
  block->any |= given != 0;
  __syncthreads();
  return block->any;
}

uint64_t exchange(uint64_t bits, int step) {
  Warp& warp = block->warps[fibre->warp];
  const int lane = fibre->lane;
  warp.given[lane] = bits;
  warp.steps[lane] = step;
  const bool last = ++warp.come == WARP;
  if (last) {
    uint64_t taken[WARP];
    for (int i = 0; i < WARP; ++i) {
      if (warp.steps[i] != step) fail("lanes of a warp differ in what they exchange");
      taken[i] = warp.given[i ^ step];
    }
    memcpy(warp.given, taken, sizeof taken);
    warp.come = 0;
    for (int i = 0; i < WARP; ++i) block->states[fibre->warp * WARP + i] = READY;
  }
  pause(last ? READY : WAITING);
  return warp.given[lane];
}

void let_others_go_first() {
  if (random_below(4) != 0) return;
  const bool punctual = block->late < 0 || block->late >= static_cast<int>(block->warps.size());
  if (punctual && random_below(4) == 0) block->late = fibre->warp;
  pause(READY);
}
void wait_for_others() { pause(POLLING); }

// The thread-local memory of this library is what its kernels share.
static thread_local char anchor;
static std::pair<char*, size_t> shared;
static int find_shared(dl_phdr_info* library, size_t, void* base) {
  if (reinterpret_cast<void*>(library->dlpi_addr) != base) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& segment = library->dlpi_phdr[i];
    if (segment.p_type == PT_TLS) shared = {static_cast<char*>(library->dlpi_tls_data), segment.p_memsz};
  }
  return 1;
}

// Exchange the shared memory that is in place, a block's or (null) nobody's any more, for that of another block.
static void place_shared(Block* before, Block& next) {
  static const std::vector<char> fresh(PART, FRESH);
  for (size_t at = 0, part = 0; at < shared.second; at += PART, ++part) {
    const size_t bytes = std::min(PART, shared.second - at);
    char* const here = shared.first + at;
    const bool written = memcmp(here, fresh.data(), bytes) != 0;
    if (before && (written || before->written[part])) {
      memcpy(before->shared.data() + at, here, bytes);
      before->written[part] = true;
    }
    if (next.written[part]) {
      memcpy(here, next.shared.data() + at, bytes);
    } else if (written) {
      memset(here, FRESH, bytes);
    }
  }
}

static void start(Block& made, Dim at, Dim blocks, Dim threads) {
  const int count = threads.x * threads.y * threads.z;
  made.fibres.resize(count);
  made.states.assign(count, READY);
  made.warps.assign((count + WARP - 1) / WARP, Warp());
  made.shared.resize(shared.second);
  made.written.assign((shared.second + PART - 1) / PART, false);
  made.left = count;
  made.at_barrier = 0;
  made.late = random_below(made.warps.size());
  for (int i = 0; i < count; ++i) {
    Fibre& one = made.fibres[i];
    const unsigned int x = i % threads.x, y = i / threads.x;
    one.place = {{x, y % threads.y, y / threads.y}, at, threads, blocks};
    one.warp = i / WARP;
    one.lane = i % WARP;
    one.state = &made.states[i];
  }
}

// Every thread that can go on does so, from a random one on, either way round, but for a late warp. Whether any could.
static bool take_turn(Block& of) {
  const int count = of.fibres.size(), first = random_below(count), step = random_below(2) ? 1 : count - 1;
  bool any = false;
  for (int n = 0, i = first; n < count; ++n, i += i + step < count ? step : step - count) {
    const State& state = of.states[i];
    if ((state != READY && state != POLLING) || i / WARP == of.late) continue;
    resume(of.fibres[i]);
    any = any || state != POLLING;
    if (state == DONE) {
      of.left -= 1;
      open_barrier();
    }
  }
  return any;
}

// What went wrong, or null.
extern "C" const char* launch(void (*entry)(void**), void** given, const Dim* sizes, unsigned int seed, int resident) {
  const Dim blocks = sizes[0], threads = sizes[1];
  Dl_info library;
  dladdr(reinterpret_cast<void*>(launch), &library);
  *static_cast<volatile char*>(&anchor) = 0;  // it is there once it is used
  dl_iterate_phdr(find_shared, library.dli_fbase);
  kernel = entry;
  arguments = given;
  randomness = seed;
  static std::vector<Dim> waiting;
  waiting.clear();
  for (unsigned int z = 0; z < blocks.z; ++z) {
    for (unsigned int y = 0; y < blocks.y; ++y) {
      for (unsigned int x = 0; x < blocks.x; ++x) waiting.push_back({x, y, z});
    }
  }
  for (size_t i = waiting.size(); i > 1; --i) std::swap(waiting[i - 1], waiting[random_below(i)]);
  static std::vector<std::unique_ptr<Block>> live, idle;  // static as what a jump leaves behind
  Block* held = nullptr;  // whose memory is in place
  size_t chosen = 0;      // the block that goes on for a while
  if (_setjmp(abandoned)) {
    live.clear();
    return complaint;
  }
  for (int stuck = 0; !live.empty() || !waiting.empty();) {
    // A block that waits for others that have not begun does not keep them from it.
    while (!waiting.empty() && (live.size() < static_cast<size_t>(resident) || stuck > PATIENCE / 2)) {
      if (idle.empty()) idle.push_back(std::make_unique<Block>());
      start(*idle.back(), waiting.back(), blocks, threads);
      live.push_back(std::move(idle.back()));
      idle.pop_back();
      waiting.pop_back();
      stuck = 0;
    }
    if (stuck || chosen >= live.size() || random_below(8) == 0) chosen = random_below(live.size());
    block = live[chosen].get();
    if (held != block) {
      place_shared(held, *block);
      held = block;
    }
    stuck = take_turn(*block) ? 0 : stuck + 1;
    if (stuck > 4 * static_cast<int>(live.size())) {
      for (auto& one : live) one->late = -1;
    }
    if (block->left == 0) {
      held = nullptr;
      stuck = 0;
      std::swap(live[chosen], live.back());
      idle.push_back(std::move(live.back()));
      live.pop_back();
    } else if (stuck > PATIENCE + 10 * static_cast<int>(live.size()) && waiting.empty()) {
      fail("some threads wait for ever");
    }
  }
  return nullptr;
}
