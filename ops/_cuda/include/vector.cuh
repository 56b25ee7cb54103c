// Vectors of elements for single accesses, and the wide types of computations.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct Widened {
  using type = float;
};
template <>
struct Widened<double> {
  using type = double;
};
template <typename T>
using Wide = typename Widened<T>::type;  // float for 16-bit types and float, double for double

__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }

template <typename T>
__device__ __forceinline__ T narrow(Wide<T> value) {
  return value;
}
template <>
__device__ __forceinline__ __half narrow<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {  // N elements, at most 16 bytes, aligned to its size
  T at[N];
};

template <int BYTES>
struct Word;
template <>
struct Word<1> {
  using type = unsigned char;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<4> {
  using type = unsigned int;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// What a vector moves as. Vectors in flight stay words until they are used: assembling one from halves would wait for its
// load before the next load is issued.
template <typename T, int N>
using VectorWord = typename Word<N * sizeof(T)>::type;

// STREAM: L2 evict_first. Pays if neighbouring blocks share a vector; plain loads are faster for long streams.
template <typename T, int N, bool STREAM = false>
__device__ __forceinline__ VectorWord<T, N> fetch(const T* from) {
  const auto* const word = reinterpret_cast<const VectorWord<T, N>*>(from);
  return STREAM ? __ldcs(word) : *word;
}

template <typename T, int N>
__device__ __forceinline__ Vector<T, N> as_vector(const VectorWord<T, N>& word) {
  return *reinterpret_cast<const Vector<T, N>*>(&word);
}

template <typename T, int N, bool STREAM = false>
__device__ __forceinline__ Vector<T, N> load(const T* from) {
  return as_vector<T, N>(fetch<T, N, STREAM>(from));
}

// L2 evict_last, for which L2 reserves lines (3/16 of it on an H200). Accesses to them do not wait for other lines to be
// written back: long streams are 2 to 8 % faster (docs/performance.md).
// The policy is the constant that createpolicy.fractional.L2::evict_last.b64 with a fraction of 1 yields for sm_80 to sm_120:
// the assembler computes it anew for each access, by five dependent instructions.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ unsigned long long evict_last_policy() { return 0x14f0000000000000ull; }
#endif

// Loads into `word` if `there`, by a predicate: with a branch, the unpacking of a word would wait for it before the next
// load is issued. HOW: suffix of ld.global. HINT, POLICY: of the L2 cache, if HOW has one.
#if __CUDA_ARCH__ >= 800
#define LOAD_WHERE(HOW, HINT, POLICY)                                    \
  asm volatile(                                                          \
      "{\n"                                                              \
      ".reg .pred there;\n"                                              \
      "setp.ne.u32 there, %5, 0;\n"                                      \
      "@there ld.global" HOW ".v4.b32 {%0, %1, %2, %3}, [%4]" HINT ";\n" \
      "}"                                                                \
      : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)           \
      : "l"(from), "r"(static_cast<unsigned int>(there)), "l"(POLICY))
#define LOAD_TWO_WHERE(HOW)                               \
  asm volatile(                                           \
      "{\n"                                               \
      ".reg .pred there;\n"                               \
      "setp.ne.u32 there, %3, 0;\n"                       \
      "@there ld.global" HOW ".v2.b32 {%0, %1}, [%2];\n"  \
      "}"                                                 \
      : "=r"(word.x), "=r"(word.y)                        \
      : "l"(from), "r"(static_cast<unsigned int>(there)))
#define LOAD_ONE_WHERE(HOW, REGISTER)           \
  asm volatile(                                 \
      "{\n"                                     \
      ".reg .pred there;\n"                     \
      "setp.ne.u32 there, %2, 0;\n"             \
      "@there ld.global" HOW " %0, [%1];\n"     \
      "}"                                       \
      : REGISTER(word)                          \
      : "l"(from), "r"(static_cast<unsigned int>(there)))
#endif

// there: else the word is undefined. STREAM: as in fetch.
template <typename T, int N, bool STREAM>
__device__ __forceinline__ VectorWord<T, N> fetch_where(const T* from, bool there) {
  VectorWord<T, N> word;
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(word) == 16) {
    if constexpr (STREAM) {
      LOAD_WHERE(".cs", "", 0ull);
    } else {
      LOAD_WHERE("", "", 0ull);
    }
    return word;
  }
  if constexpr (sizeof(word) == 8) {
    if constexpr (STREAM) {
      LOAD_TWO_WHERE(".cs");
    } else {
      LOAD_TWO_WHERE("");
    }
    return word;
  }
  if constexpr (sizeof(word) == 4) {
    if constexpr (STREAM) {
      LOAD_ONE_WHERE(".cs.b32", "=r");
    } else {
      LOAD_ONE_WHERE(".b32", "=r");
    }
    return word;
  }
  if constexpr (sizeof(word) == 2) {
    if constexpr (STREAM) {
      LOAD_ONE_WHERE(".cs.u16", "=h");
    } else {
      LOAD_ONE_WHERE(".u16", "=h");
    }
    return word;
  }
#endif
  if (there) word = fetch<T, N, STREAM>(from);
  return word;
}

// Like fetch_where, with L2 evict_last.
template <typename T, int N>
__device__ __forceinline__ VectorWord<T, N> fetch_evict_last(const T* from, bool there = true) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(VectorWord<T, N>) == 16) {
    VectorWord<T, N> word;
    LOAD_WHERE(".L2::cache_hint", ", %6", evict_last_policy());
    return word;
  }
#endif
  return fetch_where<T, N, false>(from, there);
}

// Loads a 16-byte vector of N elements if `whole`, else one element, into the first; by opposite predicates.
#define LOAD_EITHER(HOW, HINT, ONE)                                       \
  asm volatile(                                                           \
      "{\n"                                                               \
      ".reg .pred whole;\n"                                               \
      "setp.ne.u32 whole, %5, 0;\n"                                       \
      "@whole ld.global" HOW ".v4.b32 {%0, %1, %2, %3}, [%4]" HINT ";\n"  \
      "@!whole ld.global" ONE ", [%4];\n"                                 \
      "}"                                                                 \
      : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)            \
      : "l"(from), "r"(static_cast<unsigned int>(whole)), "l"(evict_last_policy()))
#define LOAD_EITHER_OF(BYTES, ONE)                 \
  if constexpr (sizeof(T) == BYTES) {              \
    if constexpr (EVICT_LAST) {                    \
      LOAD_EITHER(".L2::cache_hint", ", %6", ONE); \
    } else {                                       \
      LOAD_EITHER("", "", ONE);                    \
    }                                              \
  }
template <typename T, int N, bool EVICT_LAST>
__device__ __forceinline__ VectorWord<T, N> fetch_either(const T* from, bool whole) {
  uint4 word;
#if __CUDA_ARCH__ >= 800
  LOAD_EITHER_OF(1, ".u8 %0")
  LOAD_EITHER_OF(2, ".u16 %0")
  LOAD_EITHER_OF(4, ".b32 %0")
  LOAD_EITHER_OF(8, ".v2.b32 {%0, %1}")
#else
  if (whole) {
    word = fetch<T, N>(from);
  } else {
    *reinterpret_cast<VectorWord<T, 1>*>(&word) = fetch<T, 1>(from);
  }
#endif
  return word;
}
#undef LOAD_WHERE
#undef LOAD_TWO_WHERE
#undef LOAD_ONE_WHERE
#undef LOAD_EITHER
#undef LOAD_EITHER_OF

template <typename T, int N>
__device__ __forceinline__ Vector<T, N> load_evict_last(const T* from, bool there = true) {
  return as_vector<T, N>(fetch_evict_last<T, N>(from, there));
}

// A pointer that is computed here, before a branch after which parameters would arrive late.
template <typename T>
__device__ __forceinline__ T* early(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// Stores if `there`, by a predicate. HOW, WORDS: PTX of the access; HINT: of the L2 cache, for EVICT_LAST.
#define STORE_WHERE(HOW, WORDS, HINT, ...)                                                         \
  if constexpr (EVICT_LAST) {                                                                      \
    asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %1, 0;\n@there st.global.L2::cache_hint" \
                 HOW " [%0], " WORDS HINT ";\n}" ::"l"(to), "r"(where), __VA_ARGS__,               \
                 "l"(evict_last_policy())                                                          \
                 : "memory");                                                                      \
  } else {                                                                                         \
    asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %1, 0;\n@there st.global"               \
                 HOW " [%0], " WORDS ";\n}" ::"l"(to), "r"(where), __VA_ARGS__                     \
                 : "memory");                                                                      \
  }
template <typename T, int N, bool EVICT_LAST>
__device__ __forceinline__ void store_where(T* to, const Vector<T, N>& vector, bool there) {
  using W = VectorWord<T, N>;
  const W word = *reinterpret_cast<const W*>(&vector);
#if __CUDA_ARCH__ >= 800
  const unsigned int where = there;
  if constexpr (sizeof(W) == 16) {
    STORE_WHERE(".v4.b32", "{%2, %3, %4, %5}", ", %6", "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w))
  } else if constexpr (sizeof(W) == 8) {
    STORE_WHERE(".v2.b32", "{%2, %3}", ", %4", "r"(word.x), "r"(word.y))
  } else if constexpr (sizeof(W) == 4) {
    STORE_WHERE(".b32", "%2", ", %3", "r"(word))
  } else if constexpr (sizeof(W) == 2) {
    STORE_WHERE(".b16", "%2", ", %3", "h"(word))
  } else {
    STORE_WHERE(".b8", "%2", ", %3", "r"(static_cast<unsigned int>(word)))
  }
#else
  if (there) *reinterpret_cast<W*>(to) = word;
#endif
}
#undef STORE_WHERE

template <typename T, int N>
__device__ __forceinline__ void store_evict_last(T* to, const Vector<T, N>& vector) {
  store_where<T, N, true>(to, vector, true);
}

// Stores with L2 evict_first.
template <typename T, int N>
__device__ __forceinline__ void store_streaming(T* to, const Vector<T, N>& vector) {
  using W = VectorWord<T, N>;
  __stcs(reinterpret_cast<W*>(to), *reinterpret_cast<const W*>(&vector));
}

template <typename T, int N>
__device__ __forceinline__ void store(T* to, const Vector<T, N>& vector) {
  using W = VectorWord<T, N>;
  *reinterpret_cast<W*>(to) = *reinterpret_cast<const W*>(&vector);
}
