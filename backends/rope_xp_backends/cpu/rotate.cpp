// The rotation for CPUs: angles, norm, q and k in one pass over memory.
//
// Each step is the portable path's, in the same order and without fused multiply-add, so results
// are equal in every bit. This file is compiled once for each instruction set, LEVEL.
#include "rotate.h"

#include <math.h>
#include <string.h>

#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

#if LEVEL == 5
extern "C" const Kernels rope_xp_kernels_4;
#endif

namespace {

// --- Taylor's series, of rope_xp/_rotation/fractions.py ------------------------------------------

template <class C> INLINE C evaluate(C square, const double* coefficients, int count) {
  C value = (C)coefficients[0];
  for (int i = 1; i < count; i++) value = value * square + (C)coefficients[i];
  return value;
}

const double SINE[] = {
    1 / 355687428096000.0, -1 / 1307674368000.0, 1 / 6227020800.0, -1 / 39916800.0,
    1 / 362880.0,          -1 / 5040.0,          1 / 120.0,        -1 / 6.0};
const double COSINE[] = {1 / 20922789888000.0, -1 / 87178291200.0, 1 / 479001600.0, -1 / 3628800.0,
                         1 / 40320.0,          -1 / 720.0,         1 / 24.0,        -1 / 2.0};

#if defined(__AVX512F__)
const int WIDTH = 64;  // bytes of a vector
#elif defined(__AVX2__)
const int WIDTH = 32;
#else
const int WIDTH = 16;
#endif
const I LINE = 64;         // bytes of a line of the caches
const int SKEW = 16;       // numpy's large arrays begin so many bytes behind a line
const I AHEAD = 1 << 13;   // bytes from a row to what is fetched meanwhile, at least
const int SUM_LANES = 16;  // of a sum of squares, as rope_xp/_rotation/norm.py has it
const int NORM_ROWS = 8;   // whose roots and quotients overlap; more leave the first cache
const I BUFFER = 1 << 11;  // bytes of results that wait to be streamed

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};
template <class T> struct ComputeOf {
  typedef float type;
};
template <> struct ComputeOf<double> {
  typedef double type;
};
template <class T> using Compute = typename ComputeOf<T>::type;
template <class T> constexpr int LANES = WIDTH / sizeof(Compute<T>);
template <class T, class U> constexpr bool SAME = false;
template <class T> constexpr bool SAME<T, T> = true;

template <class E, int N> struct VectorOf {
  typedef E type __attribute__((vector_size(sizeof(E) * N)));
};
template <class E, int N> using Vec = typename VectorOf<E, N>::type;
template <int N> using Bits = Vec<uint32_t, N>;

// --- vectors in the dtype of arithmetic, and elements in memory ----------------------------------

template <class V> INLINE V read(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class V> INLINE void write(void* p, V v) { memcpy(p, &v, sizeof v); }
template <class V, class M> INLINE V select(M mask, V yes, V no) {
  return (V)((mask & (M)yes) | (~mask & (M)no));
}

#if LEVEL != 5
#include "exact.h"
#endif

// Rounded to nearest, ties to even, in the upper halves. A NaN with a lower half of zeros stays.
template <int N> INLINE Bits<N> round_to_upper(Vec<float, N> v) {
  Bits<N> bits = (Bits<N>)v;
  return bits + (0x7fff + (bits >> 16 & 1));
}

#if defined(__AVX512BF16__)
const Vec<uint16_t, 32> IN_TURN = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#endif

// Whether any number is below 2**-126, which the processor's own rounding takes for zero.
template <int N, class... V> INLINE bool are_tiny([[maybe_unused]] V... numbers) {
#if defined(__AVX512BF16__)
  if constexpr (N == 16) return (_mm512_fpclass_ps_mask((__m512)numbers, 0x20) | ...);
#endif
  return N > 0;
}

// Rounded to bfloat16, low and high in turn. By the processor, unless numbers are tiny.
template <int N>
INLINE Bits<N> round_in_turn(Vec<float, N> low, Vec<float, N> high, [[maybe_unused]] bool tiny) {
#if defined(__AVX512BF16__)
  if constexpr (N == 16)
    if (__builtin_expect(!tiny, 1))
      return (Bits<N>)_mm512_permutexvar_epi16(
          (__m512i)IN_TURN, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
#endif
  return round_to_upper<N>(low) >> 16 | (round_to_upper<N>(high) & 0xffff0000);
}

template <int N> INLINE Vec<float, N> from_float16(Vec<uint16_t, N> h) {
#if defined(__F16C__)
#if defined(__AVX512F__)
  if constexpr (N == 16) return (Vec<float, N>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#endif
  if constexpr (N == 8) return (Vec<float, N>)_mm256_cvtph_ps((__m128i)h);
  if constexpr (N == 4) return (Vec<float, N>)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)&h));
#elif defined(__aarch64__)
  return (Vec<float, N>)vcvt_f32_f16((float16x4_t)h);
#else
  typedef Bits<N> B;
  B u = __builtin_convertvector(h, B), size = u & 0x7fff;
  auto counts = __builtin_convertvector((Vec<int32_t, N>)size, Vec<float, N>);
  B bits = (size << 13) + select((B)(size >= 0x7c00), B{} + (224u << 23), B{} + (112u << 23));
  bits = select((B)(size < 0x400), (B)(counts * 0x1p-24f), bits);
  return (Vec<float, N>)(bits | (u & 0x8000) << 16);
#endif
}

template <int N> INLINE Vec<uint16_t, N> to_float16(Vec<float, N> v) {
#if defined(__F16C__)
#if defined(__AVX512F__)
  if constexpr (N == 16) return (Vec<uint16_t, N>)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, 0);
#endif
  if constexpr (N == 8) return (Vec<uint16_t, N>)_mm256_cvtps_ph((__m256)v, 0);
  if constexpr (N == 4) {
    __m128i h = _mm_cvtps_ph((__m128)v, 0);
    return read<Vec<uint16_t, N>>(&h);
  }
#elif defined(__aarch64__)
  return (Vec<uint16_t, N>)vcvt_f16_f32((float32x4_t)v);
#else
  typedef Bits<N> B;
  B u = (B)v, size = u & 0x7fffffff;
  B bits = (size + (0xc8000fffu + (size >> 13 & 1))) >> 13;
  B small = (B)((Vec<float, N>)size + 0.5f) - 0x3f000000u;  // of numbers below 2**-14
  bits = select((B)(size < 0x38800000), small, bits);
  B huge = select((B)(size > 0x7f800000), B{} + 0x7e00u, B{} + 0x7c00u);
  bits = select((B)(size >= 0x47800000), huge, bits);
  return __builtin_convertvector(bits | (u >> 16 & 0x8000), Vec<uint16_t, N>);
#endif
}

template <class T, int N> INLINE Vec<Compute<T>, N> load(const T* p) {
  if constexpr (SAME<T, Compute<T>>) {
    return read<Vec<T, N>>(p);
  } else {
    auto bits = read<Vec<uint16_t, N>>(p);
    if constexpr (SAME<T, float16>) return from_float16<N>(bits);
    else return (Vec<float, N>)(__builtin_convertvector(bits, Bits<N>) << 16);
  }
}

template <class T, int N> INLINE void store(T* p, Vec<Compute<T>, N> v) {
  if constexpr (SAME<T, Compute<T>>) write(p, v);
  else if constexpr (SAME<T, float16>) write(p, to_float16<N>(v));
  else write(p, __builtin_convertvector(round_to_upper<N>(v) >> 16, Vec<uint16_t, N>));
}

// Copies of some bytes of BYTES, an even number, without a call. Those of 8 touch no byte beside
// them: a processor waits for stores that overlap what it loads.
template <int BYTES> INLINE void copy_few(char* to, const char* from, I bytes) {
  if constexpr (BYTES > 16)
    if (bytes & 16) memcpy(to, from, 16), to += 16, from += 16;
  if (bytes & 8) memcpy(to, from, 8), to += 8, from += 8;
  if (bytes & 4) memcpy(to, from, 4), to += 4, from += 4;
  if (bytes & 2) memcpy(to, from, 2);
}
template <int BYTES> INLINE void load_few(void* to, const void* from, I bytes) {
  if constexpr (BYTES == 8) {
    uint64_t all = 0;
    if (bytes & 4) all = read<uint32_t>(from);
    if (bytes & 2)
      all |= (uint64_t)read<uint16_t>((const char*)from + (bytes & 4)) << 8 * (bytes & 4);
    write(to, all);
  } else {
#if defined(__AVX512BW__)
    const uint32_t mask = (1u << bytes) - 1;
    if constexpr (BYTES == 32) write(to, _mm256_maskz_loadu_epi8(mask, from));
    else write(to, _mm_maskz_loadu_epi8((__mmask16)mask, from));
#else
    memset(to, 0, BYTES);
    copy_few<BYTES>((char*)to, (const char*)from, bytes);
#endif
  }
}
template <int BYTES> INLINE void store_few(void* to, const void* from, I bytes) {
#if defined(__AVX512BW__)
  const uint32_t mask = (1u << bytes) - 1;
  if constexpr (BYTES == 32) return _mm256_mask_storeu_epi8(to, mask, read<__m256i>(from));
  if constexpr (BYTES == 16) return _mm_mask_storeu_epi8(to, (__mmask16)mask, read<__m128i>(from));
#endif
  copy_few<BYTES>((char*)to, (const char*)from, bytes);
}

// A step through a row: N elements at index i, or fewer, count, at the end of a row whose length is
// no multiple of the shortest vector.
template <int LENGTH, bool WHOLE> struct Step {
  static constexpr int N = LENGTH;
  I i, count;

  template <class T> INLINE Vec<Compute<T>, N> load(const T* p) const {
    if constexpr (WHOLE) return ::load<T, N>(p + i);
    T part[N];
    load_few<sizeof part>(part, p + i, count * sizeof(T));
    return ::load<T, N>(part);
  }
  template <class T> INLINE void store(T* p, Vec<Compute<T>, N> v) const {
    if constexpr (WHOLE) return ::store<T, N>(p + i, v);
    T part[N];
    ::store<T, N>(part, v);
    store_few<sizeof part>(p + i, part, count * sizeof(T));
  }
  // Elements at an index that is twice as large: two vectors.
  template <class T>
  INLINE void load_two(const T* p, Vec<Compute<T>, N>& v, Vec<Compute<T>, N>& w) const {
    T part[2 * N];
    const T* from = p + 2 * i;
    if constexpr (!WHOLE) {
      load_few<sizeof part>(part, from, 2 * count * sizeof(T));
      from = part;
    }
    v = ::load<T, N>(from), w = ::load<T, N>(from + N);
  }
  template <class T> INLINE void store_two(T* p, Vec<Compute<T>, N> v, Vec<Compute<T>, N> w) const {
    T part[2 * N];
    T* to = WHOLE ? p + 2 * i : part;
    ::store<T, N>(to, v), ::store<T, N>(to + N, w);
    if constexpr (!WHOLE) store_few<sizeof part>(p + 2 * i, part, 2 * count * sizeof(T));
  }
};

// for (i = 0; i < length; i += N) body(N lanes at i), in shorter and shorter vectors at the end. A
// lane has BYTES of memory. If rows begin SKEW bytes behind a line, shorter vectors lead up to
// where none crosses a line. With a constant LENGTH there is no loop, and what all rows share stays
// in registers.
template <class C, int N, int BYTES, int I0, int LENGTH, int START, class Body>
INLINE void unroll_steps(Body body) {
  if constexpr (START > 0 && START < N && I0 + START <= LENGTH) {
    body(Step<START, true>{I0, START});
    unroll_steps<C, N, BYTES, I0 + START, LENGTH, 2 * START>(body);
  } else if constexpr (I0 + N <= LENGTH) {
    body(Step<N, true>{I0, N});
    unroll_steps<C, N, BYTES, I0 + N, LENGTH, 0>(body);
  } else if constexpr (I0 < LENGTH) {
    static_assert(N * sizeof(C) > 16, "constant lengths are multiples of the shortest vector");
    unroll_steps<C, N / 2, BYTES, I0, LENGTH, 0>(body);
  }
}

template <class C, int N, int BYTES, class Body> INLINE void end_steps(I i, I length, Body body) {
  for (; i + N <= length; i += N) body(Step<N, true>{i, N});
  if constexpr (N * sizeof(C) > 16) end_steps<C, N / 2, BYTES>(i, length, body);
  else if (i < length) body(Step<N, false>{i, length - i});
}

template <class C, int N, int BYTES, int START, class Body>
INLINE void start_steps(I i, I length, Body body) {
  if constexpr (START < N) {
    if (i + START > length) return end_steps<C, N, BYTES>(i, length, body);
    body(Step<START, true>{i, START});
    start_steps<C, N, BYTES, 2 * START>(i + START, length, body);
  } else {
    end_steps<C, N, BYTES>(i, length, body);
  }
}

template <class C, int N, int BYTES, int LENGTH, bool SKEWED, class Body>
INLINE void for_steps(I length, Body body) {
  constexpr int START = SKEWED ? SKEW / BYTES : N;
  if constexpr (LENGTH > 0) unroll_steps<C, N, BYTES, 0, LENGTH, START>(body);
  else start_steps<C, N, BYTES, START>(0, length, body);
}

// Lanes of two vectors, counted through both, by a function of the lane of the result.
template <int (*SOURCE)(int, int, int), class C, int N, int... LANE>
INLINE Vec<C, N> shuffle(Vec<C, N> v, Vec<C, N> w, std::integer_sequence<int, LANE...>) {
  return __builtin_shufflevector(v, w, SOURCE(LANE, N, 16 / sizeof(C))...);
}
template <int (*SOURCE)(int, int, int), class C, int N>
INLINE Vec<C, N> shuffle(Vec<C, N> v, Vec<C, N> w) {
  return shuffle<SOURCE, C, N>(v, w, std::make_integer_sequence<int, N>());
}

constexpr int even(int i, int, int) { return 2 * i; }
constexpr int odd(int i, int, int) { return 2 * i + 1; }
constexpr int lower(int i, int n, int) { return i / 2 + i % 2 * n; }
constexpr int upper(int i, int n, int) { return n / 2 + lower(i, n, 0); }
// The same within blocks of 16 bytes, g lanes, where lanes move in one step. The order of pairs is
// then that of `crossed`: half a block of the first vector, half a block of the second, and so on.
constexpr int block_even(int i, int n, int g) {
  return i % g < g / 2 ? i / g * g + 2 * (i % g) : n + i / g * g + 2 * (i % g) - g;
}
constexpr int block_odd(int i, int n, int g) { return block_even(i, n, g) + 1; }
constexpr int block_lower(int i, int n, int g) { return i / g * g + i % g / 2 + i % 2 * n; }
constexpr int block_upper(int i, int n, int g) { return g / 2 + block_lower(i, n, g); }
constexpr int crossed(int i, int n, int g) {
  return i / g * (g / 2) + i % g % (g / 2) + i % g / (g / 2) * (n / 2);
}

I round_up(I pairs) { return (pairs + 3) / 4 * 4; }  // to whole steps

// --- rows ----------------------------------------------------------------------------------------
// Cos, sin and weights of a token lie in scratch in the order in which rows have them in vectors:
//   CROSSED   of neighbours in both layouts, as lanes move within 16 bytes in one step;
//   DEALT     of bfloat16 in halves: of each two vectors of pairs those with even numbers, then the
//             others. Of two neighbours of 16 bits a mask widens one and a shift the other;
//   in order  of all others, and of neighbours of bfloat16, which are widened likewise.

template <class T, bool IN, bool OUT> struct Order {
  static constexpr bool NARROW = SAME<T, bfloat16>;
  static constexpr bool CROSSED = IN && OUT && !NARROW;
  static constexpr bool DEALT = !IN && !OUT && NARROW;
};

template <class T, bool IN, bool OUT> constexpr bool IN_ORDER =
    !Order<T, IN, OUT>::CROSSED && !Order<T, IN, OUT>::DEALT;
template <class T> constexpr int GROUP = 16 / sizeof(T);  // pairs that are dealt at least

// Put numbers of pairs, in order, where rows of a kernel read them: of whole steps, also at the
// end. `change` is what becomes of each.
template <class T, bool IN, bool OUT, bool SKEWED, class From, class Change>
INLINE void arrange(const From* from, Compute<T>* to, I pairs, Change change) {
  typedef Compute<T> C;
  typedef Order<T, IN, OUT> O;
  I first = 0;
  if constexpr (O::DEALT) {
    first = pairs / GROUP<T> * GROUP<T>;
    for_steps<C, LANES<T>, 4, 0, SKEWED>(first / 2, [=](auto s) __attribute__((always_inline)) {
      auto v = change(load<From, s.N>(from + 2 * s.i)),
           w = change(load<From, s.N>(from + 2 * s.i + s.N));
      write(to + 2 * s.i, shuffle<even, C, s.N>(v, w)),
          write(to + 2 * s.i + s.N, shuffle<odd, C, s.N>(v, w));
    });
  }
  for_steps<C, LANES<T>, 1, 0, false>(pairs - first, [=](auto s) __attribute__((always_inline)) {
    auto v = change(s.load(from + first));
    if constexpr (O::CROSSED) v = shuffle<crossed, C, s.N>(v, v);
    write(to + first + s.i, v);
  });
}
template <class T, bool IN, bool OUT, bool SKEWED>
void arrange(const Compute<T>* from, Compute<T>* to, I pairs) {
  arrange<T, IN, OUT, SKEWED>(from, to, pairs,
                              [](auto v) __attribute__((always_inline)) { return v; });
}

// The same for cos or sin that are given, of a dtype of From.
template <class T, bool IN, bool OUT, bool SKEWED, class From>
void arrange_table(const char* from, Compute<T>* to, I pairs, Compute<T> sign) {
  arrange<T, IN, OUT, SKEWED>((const From*)(const void*)from, to, pairs,
                              [=](auto v) __attribute__((always_inline)) {
                                v *= sign;
                                if constexpr (Order<T, IN, OUT>::NARROW)
                                  v = select(v == v, v, decltype(v){} + NAN);
                                return v;
                              });
}

// y1 = (x1 * w1 * cos - x2 * w2 * sin) * factor, y2 = (x2 * w2 * cos + x1 * w1 * sin) * factor
template <bool NORM, class V, class C>
INLINE void rotate_pairs(V& x1, V& x2, V cos, V sin, V w1, V w2, C factor) {
  if constexpr (NORM) x1 *= w1, x2 *= w2;
  V y1 = x1 * cos - x2 * sin, y2 = x2 * cos + x1 * sin;
  if constexpr (NORM) y1 *= factor, y2 *= factor;
  x1 = y1, x2 = y2;
}

// Rotates the row at x into that at y. Where pairs move, they differ.
template <class T, bool IN, bool OUT, bool NORM, int PAIRS, bool SKEWED>
INLINE void rotate_row(const T* x, T* y, const Compute<T>* __restrict cos,
                       const Compute<T>* __restrict sin, I pairs, const Compute<T>* __restrict w,
                       Compute<T> factor) {
  typedef Compute<T> C;
  typedef Order<T, IN, OUT> O;
  const int N = LANES<T>;
  const I weights = round_up(pairs);
  I first = 0;
  if constexpr (O::NARROW && (IN || OUT)) {  // neighbours are one integer
    for_steps<C, N, 4, PAIRS, false>(pairs, [=](auto s) __attribute__((always_inline)) {
      typedef Vec<float, s.N> V;
      V c = s.load(cos), x1, x2, w1 = c, w2 = c;
      if constexpr (IN) {
        auto bits = (Bits<s.N>)s.load((const float*)(const void*)x);
        x1 = (V)(bits << 16), x2 = (V)(bits & 0xffff0000);
      } else {
        x1 = s.load(x), x2 = s.load(x + pairs);
      }
      if constexpr (NORM) w1 = s.load(w), w2 = s.load(w + weights);
      rotate_pairs<NORM>(x1, x2, c, s.load(sin), w1, w2, factor);
      if constexpr (OUT) {
        s.store((float*)(void*)y, (V)round_in_turn<s.N>(x1, x2, are_tiny<s.N>(x1, x2)));
      } else {
        s.store(y, x1), s.store(y + pairs, x2);
      }
    });
    return;
  } else if constexpr (O::DEALT) {
    first = pairs / GROUP<T> * GROUP<T>;
    constexpr int DEALT = PAIRS / GROUP<T> * GROUP<T>;
    for_steps<C, N, 4, DEALT / 2, SKEWED>(first / 2, [=](auto s) __attribute__((always_inline)) {
      constexpr int n = s.N;
      typedef Vec<float, n> V;
      const I i = 2 * s.i;
      auto a = read<Bits<n>>(x + i), b = read<Bits<n>>(x + i + pairs);
      V x1 = (V)(a << 16), x2 = (V)(b << 16), w1 = x1, w2 = x1;
      if constexpr (NORM) w1 = read<V>(w + i), w2 = read<V>(w + i + weights);
      rotate_pairs<NORM>(x1, x2, read<V>(cos + i), read<V>(sin + i), w1, w2, factor);
      V z1 = (V)(a & 0xffff0000), z2 = (V)(b & 0xffff0000);
      if constexpr (NORM) w1 = read<V>(w + i + n), w2 = read<V>(w + i + weights + n);
      rotate_pairs<NORM>(z1, z2, read<V>(cos + i + n), read<V>(sin + i + n), w1, w2, factor);
      const bool tiny = are_tiny<n>(x1, x2, z1, z2);
      write(y + i, round_in_turn<n>(x1, z1, tiny));
      write(y + i + pairs, round_in_turn<n>(x2, z2, tiny));
    });
    if (DEALT > 0 && DEALT == PAIRS) return;
    x += first, y += first, cos += first, sin += first, w += NORM ? first : 0;
  }
  for_steps<C, N, sizeof(T), O::DEALT ? 0 : PAIRS, SKEWED && !IN && !OUT && !O::DEALT>(
      pairs - first, [=](auto s) __attribute__((always_inline)) {
        constexpr int n = s.N;
        typedef Vec<C, n> V;
        V c = read<V>(cos + s.i), x1, x2, v, u, w1 = c, w2 = c;
        if constexpr (IN) {
          s.load_two(x, v, u);
          x1 = shuffle<OUT ? block_even : even, C, n>(v, u),
          x2 = shuffle<OUT ? block_odd : odd, C, n>(v, u);
        } else {
          x1 = s.load(x), x2 = s.load(x + pairs);
        }
        if constexpr (NORM) w1 = read<V>(w + s.i), w2 = read<V>(w + weights + s.i);
        rotate_pairs<NORM>(x1, x2, c, read<V>(sin + s.i), w1, w2, factor);
        if constexpr (OUT) {
          v = shuffle<IN ? block_lower : lower, C, n>(x1, x2),
          u = shuffle<IN ? block_upper : upper, C, n>(x1, x2);
          s.store_two(y, v, u);
        } else {
          s.store(y, x1), s.store(y + pairs, x2);
        }
      });
}

// --- norm: the steps of rope_xp/_rotation/norm.py ------------------------------------------------

template <class C> struct Sum {  // component n of a part in lane n % SUM_LANES
  static const int N = WIDTH / sizeof(C), VECTORS = SUM_LANES / N;
  Vec<C, N> lanes[VECTORS] = {};

  INLINE void add(const Sum& other) {
    for (int i = 0; i < VECTORS; i++) lanes[i] += other.lanes[i];
  }
};

template <class T> INLINE void add_squares(Sum<Compute<T>>& sum, const T* x) {
  const int N = LANES<T>;
  for (int i = 0; i < SUM_LANES / N; i++) {
    auto v = load<T, N>(x + i * N);
    sum.lanes[i] += v * v;
  }
}

template <class T> INLINE void sum_squares(Sum<Compute<T>>& sum, const T* x, const I count) {
  I i = 0;
  for (; i + SUM_LANES <= count; i += SUM_LANES) add_squares(sum, x + i);
  if (i < count) {
    T part[SUM_LANES] = {};
    memcpy(part, x + i, (count - i) * sizeof(T));
    add_squares(sum, part);
  }
}

// The same for neighbours, of which the first and the second components are two parts.
template <class T>
INLINE void sum_neighbours(Sum<Compute<T>>& first, Sum<Compute<T>>& second, const T* x, I count) {
  typedef Sum<Compute<T>> S;
  S low, high;
  I i = 0;
  for (; i + 2 * SUM_LANES <= count; i += 2 * SUM_LANES)
    add_squares(low, x + i), add_squares(high, x + i + SUM_LANES);
  if (i < count) {
    T part[2 * SUM_LANES] = {};
    memcpy(part, x + i, (count - i) * sizeof(T));
    add_squares(low, part), add_squares(high, part + SUM_LANES);
  }
  for (int j = 0; j < S::VECTORS; j++) {
    S& from = 2 * j < S::VECTORS ? low : high;
    int k = 2 * j % S::VECTORS;
    auto v = from.lanes[k], w = S::VECTORS == 1 ? high.lanes[0] : from.lanes[(k + 1) % S::VECTORS];
    first.lanes[j] = shuffle<even, Compute<T>, S::N>(v, w),
    second.lanes[j] = shuffle<odd, Compute<T>, S::N>(v, w);
  }
}

template <class C, int N> INLINE C add_lanes(Vec<C, N> v) {
  if constexpr (N == 1) {
    return v[0];
  } else if constexpr (N == 2) {
    return v[0] + v[1];
  } else {
    typedef Vec<C, N / 2> Half;
    Half halves[2];
    memcpy(halves, &v, sizeof v);
    return add_lanes<C, N / 2>(halves[0] + halves[1]);
  }
}

// 1 / sqrt(mean(x * x) + eps), by a mean of float64.
template <class T, bool IN>
INLINE Compute<T> find_factor(const T* x, const Job& job, const I pairs) {
  typedef Sum<Compute<T>> S;
  S total, second, before, after;
  if constexpr (IN) sum_neighbours(total, second, x, 2 * pairs);
  else sum_squares(total, x, pairs), sum_squares(second, x + pairs, pairs);
  total.add(second);
  I count = 2 * pairs;
  if (job.normalizes_rest) {
    sum_squares(before, x - job.before, job.before);
    sum_squares(after, x + count, job.after);
    total.add(before), total.add(after);
    count += job.before + job.after;
  }
  for (int n = S::VECTORS / 2; n; n /= 2)
    for (int i = 0; i < n; i++) total.lanes[i] += total.lanes[i + n];
  double mean = (double)add_lanes<Compute<T>, S::N>(total.lanes[0]) * (1.0 / count);
  return (Compute<T>)(1.0 / sqrt(mean + job.eps));
}

// y = x * w * factor, beside the rotated slice
template <class T>
INLINE void scale(const T* x, T* y, const Compute<T>* w, I count, Compute<T> factor) {
  for_steps<Compute<T>, LANES<T>, sizeof(T), 0, false>(
      count,
      [=](auto s) __attribute__((always_inline)) { s.store(y, s.load(x) * s.load(w) * factor); });
}

template <class C, class T> INLINE C read_number(const char* p) {
  if constexpr (SAME<T, float16>) {
    Vec<uint16_t, 4> h = {read<uint16_t>(p)};
    return (C)from_float16<4>(h)[0];
  } else if constexpr (SAME<T, bfloat16>) {
    uint32_t bits = (uint32_t)read<uint16_t>(p) << 16;
    return (C)read<float>(&bits);
  } else {
    return (C)read<T>(p);
  }
}

template <class C, class T> void read_numbers_of(const char* p, I step, I count, C* to) {
  if (step == sizeof(T))  // a constant, by which loops have vectors
    for (I i = 0; i < count; i++) to[i] = read_number<C, T>(p + i * (I)sizeof(T));
  else
    for (I i = 0; i < count; i++) to[i] = read_number<C, T>(p + i * step);
}

template <class C> void read_numbers(const char* p, I step, Dtype dtype, I count, C* to) {
  if (dtype == FLOAT16) read_numbers_of<C, float16>(p, step, count, to);
  else if (dtype == BFLOAT16) read_numbers_of<C, bfloat16>(p, step, count, to);
  else if (dtype == FLOAT32) read_numbers_of<C, float>(p, step, count, to);
  else read_numbers_of<C, double>(p, step, count, to);
}

// NaNs with lower halves of zeros, which products hand on to round_to_upper.
template <class C> INLINE C canonicalize(C x) { return x == x ? x : (C)NAN; }

// Weights and their offset, 1 for none: in `slice` of the first components of pairs and then of the
// second, as rows read them, and in `rest` of the components before and after the slice.
template <class T, bool IN, bool OUT, bool SKEWED>
void read_weights(const Job& job, const Operand& o, Compute<T>* slice, Compute<T>* rest,
                  Compute<T>* spare) {
  typedef Compute<T> C;
  const I r = job.pairs, before = job.normalizes_rest ? job.before : 0,
          after = job.normalizes_rest ? job.after : 0;
  const I size = o.weight_dtype == FLOAT64 ? 8 : o.weight_dtype == FLOAT32 ? 4 : 2;
  auto read_part = [&](I first, I step, I count, C* to) {
    if (o.weight) read_numbers<C>(o.weight + first * size, step * size, o.weight_dtype, count, to);
    for (I i = 0; i < count; i++)
      to[i] = o.weight ? canonicalize(to[i] + (C)job.weight_offset) : (C)1;
  };
  read_part(0, 1, before, rest), read_part(before + 2 * r, 1, after, rest + before);
  for (int k = 0; k < 2; k++) {
    read_part(before + (IN ? k : k * r), IN ? 2 : 1, r, spare);
    arrange<T, IN, OUT, SKEWED>(spare, slice + k * round_up(r), r);
  }
}

// --- angles: the steps of rope_xp/_rotation/angles.py and fractions.py ---------------------------

template <class C> struct Angle {
  C cos, sin;
};

template <class C> struct Scratch {
  C *cos, *sin;   // of a block, as rows read them
  I step;         // from those of a token to those of the next
  C* row;         // cos and sin of a token, in order; spare
  C* digit_rows;  // of small tables, and their digits
  I digits[3];
  C *weights[2], *rest[2];
  char* buffer;  // of results that wait to be streamed
  C* spare;      // a row whose pairs move
};

// The angle a + b. Tables of float64 have cos b - 1, as fractions do.
template <class C> INLINE Angle<C> compose(Angle<C> a, Angle<C> b, bool less_1) {
  C c = a.cos * b.cos - a.sin * b.sin, s = a.sin * b.cos + a.cos * b.sin;
  return less_1 ? Angle<C>{a.cos + c, a.sin + s} : Angle<C>{c, s};
}

// cos - 1 and sin of an angle: Cody and Waite's reduction, and Taylor's series.
template <class C> INLINE Angle<C> find_cosm1_sin(C angle) {
  const bool wide = sizeof(C) == 8;
  const C coarse = wide ? (C)1.570796325802803 : (C)1.57080078125;
  const C fine = wide ? (C)9.920935796805404e-10 : (C)-4.454455103380769e-06;
  C quarters = (C)floor(angle * (C)(2 / M_PI) + (C)0.5);
  int32_t turns = quarters == quarters ? (int32_t)quarters : 0;
  C x = (angle - quarters * coarse) - quarters * fine, square = x * x;
  C odd = wide ? evaluate(square, SINE, 8) : evaluate(square, SINE + 4, 4);
  C even = wide ? evaluate(square, COSINE, 8) : evaluate(square, COSINE + 3, 5);
  C cosm1 = square * even, sin = x + (x * square) * odd, cos = (C)1 + cosm1;
  C c = turns & 1 ? sin : cos, s = turns & 1 ? cos : sin;
  c = (turns + 1) & 2 ? -c : c;
  return {turns == 0 ? cosm1 : c - (C)1, turns & 2 ? -s : s};
}

// A row of a digit table: where it lies, or as small tables give it for frequencies first to end,
// as rope_xp/_rotation/tables.py computes it.
template <class C>
INLINE const C* find_row(const Job& job, int level, I digit, I first, I end, Scratch<C>& scratch) {
  const I r = job.pairs;
  if (sizeof(C) == 8 || job.low) {
    const void* table = level == 0 ? job.low : level == 1 ? job.middle : job.high;
    return (const C*)table + digit * 2 * r;
  }
  C* __restrict row = scratch.digit_rows + level * 2 * r;
  if (scratch.digits[level] == digit) return row;  // neighbouring tokens share two of three
  scratch.digits[level] = first == 0 && end == r ? digit : -1;
  if (level == 2 && digit == TOP_DIGIT) {
    for (I j = first; j < end; j++) row[j] = row[j + r] = (C)NAN;
    return row;
  }
  const double *inner = job.inner + (INNER * level + digit % INNER) * 2 * r,
               *outer = job.outer + (OUTER * level + digit / INNER) * 2 * r;
  const double factor = level == 0 ? job.factor : 1;
  for (I j = first; j < end; j++) {
    const Angle<double> sum =
        compose<double>({outer[j], outer[j + r]}, {inner[j], inner[j + r]}, false);
    row[j] = (C)(sum.cos * factor), row[j + r] = (C)(sum.sin * factor);
  }
  return row;
}

// Angles of one position, of frequencies first to end; if `mixed`, of those that read component c.
template <class C> void look_up_row(const Job& job, I position, const char* fraction, I c, I first,
                                    I end, bool mixed, C* __restrict cos, C* __restrict sin,
                                    Scratch<C>& scratch) {
  const I r = job.pairs;
  const bool inside = position > -LIMIT && position < LIMIT, wide = sizeof(C) == 8;
  const I size = inside ? (position < 0 ? -position : position) : 0;
  const I digit = inside ? size >> 2 * DIGIT_BITS : TOP_DIGIT;
  const C* low = find_row(job, 0, size & (DIGIT - 1), first, end, scratch);
  const C* middle = find_row(job, 1, size >> DIGIT_BITS & (DIGIT - 1), first, end, scratch);
  const C* high = digit ? find_row(job, 2, digit, first, end, scratch) : nullptr;
  const bool negative = (position < 0) != (job.inverse && !fraction);
  if (mixed) {
    for (I j = first; j < end; j++)
      if (job.component[j] == c) {
        Angle<C> angle = compose<C>({low[j], low[j + r]}, {middle[j], middle[j + r]}, wide);
        if (digit) angle = compose<C>(angle, {high[j], high[j + r]}, wide);
        cos[j] = angle.cos, sin[j] = negative ? -angle.sin : angle.sin;
      }
  } else if (digit) {
    for (I j = first; j < end; j++) {
      Angle<C> angle = compose<C>({low[j], low[j + r]}, {middle[j], middle[j + r]}, wide);
      angle = compose<C>(angle, {high[j], high[j + r]}, wide);
      cos[j] = angle.cos, sin[j] = negative ? -angle.sin : angle.sin;
    }
  } else {
    for (I j = first; j < end; j++) {
      Angle<C> angle = compose<C>({low[j], low[j + r]}, {middle[j], middle[j + r]}, wide);
      cos[j] = angle.cos, sin[j] = negative ? -angle.sin : angle.sin;
    }
  }
  if (!fraction) return;
  const C part = read<C>(fraction), *frequencies = (const C*)job.frequencies;
  for (I j = first; j < end; j++)
    if (!mixed || job.component[j] == c) {
      Angle<C> angle = compose<C>({cos[j], sin[j]}, find_cosm1_sin<C>(part * frequencies[j]), true);
      cos[j] = angle.cos, sin[j] = job.inverse ? -angle.sin : angle.sin;
    }
}

// The angles of a token, in order. a and b are what its positions and fractions, or cos and sin,
// begin at.
template <class C> void find_angles(const Job& job, I token, const char* a, const char* b, C* cos,
                                    C* sin, Scratch<C>& scratch) {
  const I r = job.pairs;
  if (!job.lookup) {
    read_numbers<C>(a, job.a_last, job.angle_dtype, r, cos);
    read_numbers<C>(b, job.b_last, job.angle_dtype, r, sin);
    for (I j = 0; j < r; j++)
      cos[j] = canonicalize(cos[j]), sin[j] = canonicalize(job.inverse ? -sin[j] : sin[j]);
    return;
  }
  const bool is_mixed = job.segments == 0;
  for (I i = 0; i < (is_mixed ? job.components : job.segments); i++) {
    const I first = is_mixed || i == 0 ? 0 : job.segment[i - 1].end,
            end = is_mixed ? r : job.segment[i].end;
    const I c = is_mixed ? i : job.segment[i].component;
    I position = token;
    if (a)
      position = job.angle_dtype == INT32 ? read<int32_t>(a + c * job.a_last)
                                          : read<I>(a + c * job.a_last);
    look_up_row<C>(job, position, b ? b + c * job.b_last : nullptr, c, first, end, is_mixed, cos,
                   sin, scratch);
  }
}

// --- blocks of tokens ----------------------------------------------------------------------------

// memcpy of few bytes, without a call.
INLINE void copy(char* to, const char* from, I bytes) {
  typedef Vec<char, 16> V;
  if (bytes < 16) {
    for (I i = 0; i < bytes; i++) to[i] = from[i];
    return;
  }
  for (I i = 0; i + 16 <= bytes; i += 16) write(to + i, read<V>(from + i));
  write(to + bytes - 16, read<V>(from + bytes - 16));
}

// Writes past the caches, in whole lines: what is left of a line at either end is written as usual.
INLINE void stream(char* y, const char* from, I bytes) {
#if defined(__x86_64__)
  I i = -(uintptr_t)y % LINE;
  if (i > bytes) i = bytes;
  memcpy(y, from, i);
  for (; i + LINE <= bytes; i += LINE)
    for (int j = 0; j < LINE; j += 16)
      _mm_stream_si128((__m128i*)(y + i + j), read<__m128i>(from + i + j));
  memcpy(y + i, from + i, bytes - i);
#else
  memcpy(y, from, bytes);
#endif
}

struct Rows {  // rows at equal distances, in bytes
  const char* x;
  char* y;
  I x_step, y_step, count;
  I ahead, prefetches;  // how far ahead of a row how many bytes are fetched
};

// Rotates rows by the same angles, or if they MOVE, each by its own.
template <class T, bool IN, bool OUT, bool NORM, bool SKEWED, bool MOVE, int PAIRS>
void rotate_each(const Job& job, const Rows& rows, const Compute<T>* cos, const Compute<T>* sin,
                 const Compute<T>* w, const Compute<T>* rest, const Scratch<Compute<T>>& scratch) {
  typedef Compute<T> C;
  const I r = PAIRS > 0 ? PAIRS : job.pairs, before = job.before, after = job.after;
  auto rotate_all = [&](const C* __restrict c,
                        const C* __restrict s) __attribute__((always_inline)) {
    C factors[NORM_ROWS] = {};
    for (I j = 0; j < rows.count; j++) {
      const char* x = rows.x + j * rows.x_step;
      T* y = (T*)(rows.y + j * rows.y_step);
      if (NORM && j % NORM_ROWS == 0)
        for (I m = 0; m < NORM_ROWS && j + m < rows.count; m++)
          factors[m] = find_factor<T, IN>((const T*)(x + m * rows.x_step), job, r);
      const C factor = NORM ? factors[j % NORM_ROWS] : 0;
      for (I i = 0; i < rows.prefetches; i += LINE) __builtin_prefetch(x + rows.ahead + i, 0, 3);
      const T* from = (const T*)x;
      if (NORM && job.normalizes_rest) {
        scale(from - before, y - before, rest, before, factor);
        scale(from + 2 * r, y + 2 * r, rest + before, after, factor);
      }
      if (IN != OUT && from == y)
        from = (const T*)memcpy((void*)scratch.spare, from, 2 * r * sizeof(T));
      rotate_row<T, IN, OUT, NORM, PAIRS, SKEWED>(from, y, c, s, r, w, factor);
      if (MOVE) c += scratch.step, s += scratch.step;
    }
  };
  if constexpr (PAIRS > 0) {  // copies that no result overlaps, so that they stay in registers
    const I skew = SKEWED ? SKEW / sizeof(T) : 0;
    alignas(LINE) C local[2][PAIRS + LINE];
    memcpy(local[0] + skew, cos, PAIRS * sizeof(C)),
        memcpy(local[1] + skew, sin, PAIRS * sizeof(C));
    rotate_all(local[0] + skew, local[1] + skew);
  } else {
    rotate_all(cos, sin);
  }
}

// The same, with lengths of usual heads as constants.
template <class T, bool IN, bool OUT, bool NORM, bool SKEWED, class... A>
void rotate_usual(I pairs, A&... a) {
  if constexpr (IN == OUT) {
    if (pairs == 32) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 32>(a...);
    if (pairs == 64) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 64>(a...);
    if (pairs == 128) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 128>(a...);
  }
  if constexpr (IN == OUT && !NORM) {
    if (pairs == 8) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 8>(a...);
    if (pairs == 12) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 12>(a...);
    if (pairs == 16) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 16>(a...);
    if (pairs == 40) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 40>(a...);
    if (pairs == 48) return rotate_each<T, IN, OUT, NORM, SKEWED, false, 48>(a...);
  }
  rotate_each<T, IN, OUT, NORM, SKEWED, false, 0>(a...);
}

// All rows of q or of k in a block of tokens, perhaps to slots.
template <class T, bool IN, bool OUT, bool NORM, bool SKEWED>
void rotate_block(const Job& job, int k, const char* x, char* y, const char* slots, I tokens,
                  const Scratch<Compute<T>>& scratch) {
  typedef Compute<T> C;
  const Operand& o = job.operand[k];
  const Dim& dim = job.dims[job.ndim - 1];
  const I x_token = dim.steps[2 * k], y_token = dim.steps[2 * k + 1];
  const I r = job.pairs, before = job.before * sizeof(T), slice = 2 * r * sizeof(T),
          after = job.after * sizeof(T);
  const I size = before + slice + after;
  const bool in_place = o.x == o.y,
             copies = !in_place && !(NORM && job.normalizes_rest) && before + after;
  const bool tokens_first =
      slots || dim.length == 1 ||
      (o.x_head < 0 ? -o.x_head : o.x_head) <= (x_token < 0 ? -x_token : x_token);
  const I outer = tokens_first ? tokens : o.heads, inner = tokens_first ? o.heads : tokens;
  const I x_outer = tokens_first ? x_token : o.x_head, x_inner = tokens_first ? o.x_head : x_token;
  const I y_outer = tokens_first ? y_token : o.y_head, y_inner = tokens_first ? o.y_head : y_token;
  const bool streams =
      job.is_large && !in_place && y_inner == size && size % LINE == 0 && size >= 4 * LINE;
  // The processor foresees what is read next, but for slices, as of a fused projection, and for
  // long arrays.
  const bool prefetches =
      tokens_first && ((job.is_large && slice >= 4 * LINE) || x_token != o.heads * o.x_head);
  const I most = streams ? (size < BUFFER ? BUFFER / size : 1) : inner;
  // Tokens of few heads are read faster than the next one comes.
  const I ahead = prefetches && x_token < AHEAD && x_token > 0 ? AHEAD : x_token;
  for (I i = 0; i < outer; i++) {
    char* to = y + i * y_outer;
    if (slots) {
      const I slot = read_integer(slots + i * dim.steps[SLOTS], job.slot_dtype);
      if ((uint64_t)slot >= (uint64_t)job.limit) continue;  // padding, or written meanwhile
      const I page = job.page ? slot / job.page : 0;
      to += page * job.page_step + (slot - page * job.page) * job.slot_step;
    }
    for (I j = 0, n; j < inner; j += n) {
      n = inner - j < most ? inner - j : most;
      const char* from = x + i * x_outer + j * x_inner + before;
      char* target = to + j * y_inner + before;
      if (streams)
        target = scratch.buffer + (SKEWED ? (before + LINE - 1) / LINE * LINE + SKEW : before);
      const Rows rows = {from,
                         target,
                         x_inner,
                         streams ? size : y_inner,
                         n,
                         copies ? ahead - before : ahead,
                         prefetches ? (copies ? size : slice) : 0};
      for (I m = 0; copies && m < n; m++) {
        const char* xs = from + m * x_inner;
        char* ys = target + m * rows.y_step;
        copy(ys - before, xs - before, before), copy(ys + slice, xs + slice, after);
      }
      const I t = (tokens_first ? i : j) * scratch.step;
      const C *cos = scratch.cos + t, *sin = scratch.sin + t, *w = scratch.weights[k],
              *rest = scratch.rest[k];
      if (tokens_first)
        rotate_usual<T, IN, OUT, NORM, SKEWED>(r, job, rows, cos, sin, w, rest, scratch);
      else rotate_each<T, IN, OUT, NORM, SKEWED, true, 0>(job, rows, cos, sin, w, rest, scratch);
      if (streams) stream(to + j * y_inner, target - before, n * size);
    }
  }
}

template <class C> I lay_out(const Job& job, char* memory, Scratch<C>& scratch) {
  I used = 0;
  auto take = [&](I count) {
    C* p = (C*)(memory + used);
    used += (count * (I)sizeof(C) + 2 * LINE) / LINE * LINE;  // a line apart at least
    return p;
  };
  const I row = job.before + 2 * job.pairs + job.after, r2 = 2 * round_up(job.pairs);
  scratch.cos = take(r2 / 2 * job.block), scratch.sin = take(r2 / 2 * job.block);
  scratch.row = take(r2);
  scratch.digit_rows = take(job.lookup && !job.low ? 6 * job.pairs : 0);
  for (I& digit : scratch.digits) digit = -1;
  for (int k = 0; k < 2; k++)
    scratch.weights[k] = take(job.normalized ? r2 : 0),
    scratch.rest[k] = take(job.normalized ? row : 0);
  scratch.spare = take(row);
  scratch.buffer = (char*)take(job.is_large ? (BUFFER + 2 * LINE) / sizeof(C) + 2 * row : 0);
  return used;
}

// Whether all rows begin SKEW bytes behind a line.
bool is_skewed(const Job& job) {
  const Dim& dim = job.dims[job.ndim - 1];
  const I before = job.before * (job.dtype == FLOAT64 ? 8 : job.dtype == FLOAT32 ? 4 : 2) - SKEW;
  I apart = 0;
  for (int k = 0; k < job.operands; k++) {
    const Operand& o = job.operand[k];
    apart |= ((I)o.x + before) | ((I)o.y + before) | o.x_head | o.y_head | dim.steps[2 * k] |
             dim.steps[2 * k + 1];
  }
  return WIDTH > SKEW && apart % LINE == 0;
}

// What reads cos or sin that are given side by side, in the dtype of arithmetic or of arrays.
template <class C> using Reader = void (*)(const char* from, C* to, I pairs, C sign);
template <class C> constexpr Dtype DTYPE = sizeof(C) == 8 ? FLOAT64 : FLOAT32;
template <class T, bool IN, bool OUT, bool SKEWED> Reader<Compute<T>> find_reader(const Job& job) {
  typedef Compute<T> C;
  auto has_size = [&](I size) { return !job.lookup && job.a_last == size && job.b_last == size; };
  if (job.angle_dtype == DTYPE<C> && has_size(sizeof(C)))
    return arrange_table<T, IN, OUT, SKEWED, C>;
  if (sizeof(T) == 2 && job.angle_dtype == job.dtype && has_size(sizeof(T)))
    return arrange_table<T, IN, OUT, SKEWED, T>;
  return nullptr;
}

// Whether rows read them where they lie.
template <class T, bool IN, bool OUT> bool are_arranged(const Job& job) {
  typedef Order<T, IN, OUT> O;
  const I *steps = job.dims[job.ndim - 1].steps, size = sizeof(Compute<T>);
  return !O::CROSSED && !O::NARROW && job.angle_dtype == DTYPE<Compute<T>> && !job.inverse &&
         job.pairs == round_up(job.pairs) && steps[ANGLES_A] == steps[ANGLES_B] &&
         steps[ANGLES_A] % size == 0;
}

template <class T, bool IN, bool OUT, bool NORM, bool SKEWED>
void rotate_rows(const Job& job, I start, I stop, char* memory) {
  typedef Compute<T> C;
  const I r = job.pairs, angles = round_up(r);
  const Dim& last = job.dims[job.ndim - 1];
  Scratch<C> scratch;
  lay_out(job, memory, scratch);
  if (SKEWED) scratch.cos += SKEW / sizeof(T), scratch.sin += SKEW / sizeof(T);  // as rows are
  const Reader<C> read_table = find_reader<T, IN, OUT, SKEWED>(job);
  const bool arranged = read_table && are_arranged<T, IN, OUT>(job);
  scratch.step = arranged ? last.steps[ANGLES_A] / (I)sizeof(C) : angles;
  if (NORM)
    for (int k = 0; k < job.operands; k++)
      read_weights<T, IN, OUT, SKEWED>(job, job.operand[k], scratch.weights[k], scratch.rest[k],
                                       scratch.row);
  for (I row = start, n; row < stop; row += n) {
    const I token = row % last.length;
    n = job.block < stop - row ? job.block : stop - row;
    n = n < last.length - token ? n : last.length - token;
    I steps[STRIDED];
    for (int s = 0; s < STRIDED; s++) steps[s] = token * last.steps[s];
    I rest = row / last.length;
    for (int d = job.ndim - 2; d >= 0; rest /= job.dims[d--].length)
      for (int s = 0; s < STRIDED; s++)
        steps[s] += rest % job.dims[d].length * job.dims[d].steps[s];
    if (arranged)
      scratch.cos = (C*)(job.a + steps[ANGLES_A]), scratch.sin = (C*)(job.b + steps[ANGLES_B]);
    for (I i = 0; i < n && !arranged; i++) {
      const char* a = job.a ? job.a + steps[ANGLES_A] + i * last.steps[ANGLES_A] : nullptr;
      const char* b = job.b ? job.b + steps[ANGLES_B] + i * last.steps[ANGLES_B] : nullptr;
      C *const cos = scratch.cos + i * angles, *const sin = scratch.sin + i * angles;
      if (read_table) {
        for (I line = 0; line < r * job.a_last; line += LINE)
          __builtin_prefetch(a + AHEAD + line, 0, 3), __builtin_prefetch(b + AHEAD + line, 0, 3);
        read_table(a, cos, r, 1), read_table(b, sin, r, job.inverse ? -1 : 1);
      } else if constexpr (IN_ORDER<T, IN, OUT>) {
        find_angles<C>(job, token + i, a, b, cos, sin, scratch);
      } else {
        find_angles<C>(job, token + i, a, b, scratch.row, scratch.row + r, scratch);
        arrange<T, IN, OUT, SKEWED>(scratch.row, cos, r);
        arrange<T, IN, OUT, SKEWED>(scratch.row + r, sin, r);
      }
    }
    for (int k = 0; k < job.operands; k++) {
      const Operand& o = job.operand[k];
      const bool to_slots = job.slots && k == job.operands - 1;
      const char* slots = to_slots ? job.slots + steps[SLOTS] : nullptr;
      rotate_block<T, IN, OUT, NORM, SKEWED>(job, k, o.x + steps[2 * k], o.y + steps[2 * k + 1],
                                             slots, n, scratch);
    }
  }
#if defined(__x86_64__)
  if (job.is_large) _mm_sfence();  // all threads see streamed results from here on
#endif
}

template <class T, bool IN, bool OUT>
void rotate_layout(const Job& job, I start, I stop, char* memory) {
  if (job.normalized) return rotate_rows<T, IN, OUT, true, false>(job, start, stop, memory);
  if constexpr (!IN && !OUT && WIDTH > SKEW && !SAME<T, bfloat16>)
    if (is_skewed(job)) return rotate_rows<T, IN, OUT, false, true>(job, start, stop, memory);
  rotate_rows<T, IN, OUT, false, false>(job, start, stop, memory);
}

template <class T> void rotate_dtype(const Job& job, I start, I stop, char* memory) {
  if (job.interleaved_in && job.interleaved_out)
    rotate_layout<T, true, true>(job, start, stop, memory);
  else if (job.interleaved_in) rotate_layout<T, true, false>(job, start, stop, memory);
  else if (job.interleaved_out) rotate_layout<T, false, true>(job, start, stop, memory);
  else rotate_layout<T, false, false>(job, start, stop, memory);
}

I count_scratch(const Job* job) {
  if (job->dtype == FLOAT64) {
    Scratch<double> scratch;
    return lay_out(*job, nullptr, scratch);
  }
  Scratch<float> scratch;
  return lay_out(*job, nullptr, scratch);
}

#if LEVEL == 5  // which differs in bfloat16 alone
void rotate(const Job* job, I start, I stop, char* scratch) {
  if (job->dtype == BFLOAT16) return rotate_dtype<bfloat16>(*job, start, stop, scratch);
  rope_xp_kernels_4.rotate(job, start, stop, scratch);
}
#else
void rotate(const Job* job, I start, I stop, char* scratch) {
  switch (job->dtype) {
    case FLOAT16:
      return rotate_dtype<float16>(*job, start, stop, scratch);
    case BFLOAT16:
      return rotate_dtype<bfloat16>(*job, start, stop, scratch);
    case FLOAT32:
      return rotate_dtype<float>(*job, start, stop, scratch);
    default:
      return rotate_dtype<double>(*job, start, stop, scratch);
  }
}
#endif

}  // namespace

#define JOIN(a, b) a##b
#define NAME(level) JOIN(rope_xp_kernels_, level)
extern "C" const Kernels NAME(LEVEL);
#if LEVEL == 5
const Kernels NAME(LEVEL) = {count_scratch, rotate, rope_xp_kernels_4.multiply,
                             rope_xp_kernels_4.sum};
#else
const Kernels NAME(LEVEL) = {count_scratch, rotate, multiply, sum};
#endif
