// The rotation for GPUs: angles, q and k in one launch, one pass over memory.
//
// A thread turns a few neighbouring pairs of one token in several heads, so that it computes their
// angles once. Threads in x share a head, in y a token. Each step is the portable path's, in the
// same order and without fused multiply-add, so results are equal in every bit.
//
// Compiled by NVRTC, and by g++ where tests run it on a CPU.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Strides {  // in bytes
  long long x_outer, x_inner, x_head;
  long long out_outer, out_inner, out_head;
};

struct Arguments {  // 64 bits each: cuda_plan.py lists them in the same order
  const char *q, *k;
  char *q_out, *k_out;
  const char *angles;       // positions, or null for 0, 1, 2, ...; or cosines
  const char *sines;        // null where angles are looked up
  const float *low, *middle, *high;
  const int *component;     // which position component each pair reads, where there are several
  long long outer, inner;   // rows: two axes that hold all tokens of all batches
  long long q_heads, heads; // of q; of q and k
  Strides q_strides, k_strides;
  long long angles_outer, angles_inner, angles_component;
  long long sines_outer, sines_inner;
  long long start, count_outer, count_inner;  // positions that are counted
  long long pairs;          // r / 2
  long long before, turned; // bytes in front of the rotated slice, and in it
  long long turning, lanes; // threads that share a head: those that rotate, and all
  long long long_positions; // whether they have 64 bits, else 32
  long long inverse;
};

// As in rope_xp/_rotation/tables.py.
#define DIGIT_BITS 11
#define DIGIT_MASK 2047
#define TOP_DIGIT 512
#define LIMIT 2147483648LL

// Where a thread gets its angles.
#define GIVEN 0
#define LOOKED_UP 1
#define SEVERAL 2  // looked up, by several position components

// --- numbers ------------------------------------------------------------------------------------

#ifdef __CUDA_ARCH__
// In PTX, as cupy compiles everything with -ftz=true, which takes small numbers for zero.
#define ROUNDED(name, op) \
  __device__ __forceinline__ float name(float a, float b) { \
    float c; \
    asm(op ".rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); \
    return c; \
  }
ROUNDED(times, "mul")
ROUNDED(plus, "add")
ROUNDED(minus, "sub")
__device__ __forceinline__ float negative(float a) {
  float c;
  asm("neg.f32 %0, %1;" : "=f"(c) : "f"(a));
  return c;
}
__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double minus(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ double negative(double a) { return -a; }
#else
template <typename C> C times(C a, C b) { return a * b; }
template <typename C> C plus(C a, C b) { return a + b; }
template <typename C> C minus(C a, C b) { return a - b; }
template <typename C> C negative(C a) { return -a; }
#endif

template <typename T> struct Element {
  using Computed = T;
  static __device__ __forceinline__ T widen(T x) { return x; }
  static __device__ __forceinline__ T round(T x) { return x; }
};
template <> struct Element<__half> {
  using Computed = float;
  static __device__ __forceinline__ float widen(__half x) { return __half2float(x); }
  static __device__ __forceinline__ __half round(float x) { return __float2half_rn(x); }
};
template <> struct Element<__nv_bfloat16> {
  using Computed = float;
  static __device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __forceinline__ __nv_bfloat16 round(float x) { return __float2bfloat16_rn(x); }
};

// --- memory -------------------------------------------------------------------------------------

template <int BYTES> struct Word;
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned int; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<16> { using Type = uint4; };

template <typename W, bool ONCE> __device__ __forceinline__ W read(const char *from) {
#ifdef __CUDA_ARCH__
  if (ONCE) return __ldcs(reinterpret_cast<const W *>(from));  // leaves the caches to all else
#endif
  return *reinterpret_cast<const W *>(from);
}

template <typename T> __device__ __forceinline__ T read_constant(const void *from) {
#ifdef __CUDA_ARCH__
  return __ldg(static_cast<const T *>(from));
#else
  return *static_cast<const T *>(from);
#endif
}

template <typename C, int N> __device__ __forceinline__ void read_row(C (&to)[N], const C *from) {
  constexpr int BYTES = N * sizeof(C) < 16 ? N * sizeof(C) : 16, EACH = BYTES / sizeof(C);
  using W = typename Word<BYTES>::Type;
#pragma unroll
  for (int i = 0; i < N; i += EACH) {
    const W word = read_constant<W>(from + i);
    memcpy(to + i, &word, BYTES);
  }
}

// --- angles -------------------------------------------------------------------------------------

template <int N>
__device__ __forceinline__ void compose(float (&cos)[N], float (&sin)[N], const float (&c)[N],
                                        const float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float sum = minus(times(cos[i], c[i]), times(sin[i], s[i]));
    sin[i] = plus(times(sin[i], c[i]), times(cos[i], s[i]));
    cos[i] = sum;
  }
}

template <int N>
__device__ __forceinline__ void compose_row(float (&cos)[N], float (&sin)[N], const float *table,
                                            unsigned digit, long long pairs) {
  if (digit == 0) return;  // a rotation by nothing
  float c[N], s[N];
  read_row(c, table + digit * 2 * pairs);
  read_row(s, table + digit * 2 * pairs + pairs);
  compose(cos, sin, c, s);
}

template <int N>
__device__ __forceinline__ void look_up(float (&cos)[N], float (&sin)[N], const Arguments &a,
                                        long long position, int first) {
  const bool inside = -LIMIT < position && position < LIMIT;
  const unsigned size = inside ? static_cast<unsigned>(position < 0 ? -position : position) : 0;
  const float *low = a.low + (size & DIGIT_MASK) * 2 * a.pairs + first;
  read_row(cos, low);
  read_row(sin, low + a.pairs);
  compose_row(cos, sin, a.middle + first, (size >> DIGIT_BITS) & DIGIT_MASK, a.pairs);
  compose_row(cos, sin, a.high + first, inside ? size >> (2 * DIGIT_BITS) : TOP_DIGIT, a.pairs);
  if (position < 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) sin[i] = negative(sin[i]);
  }
}

__device__ __forceinline__ long long position_of(const Arguments &a, const char *angles,
                                                 long long outer, long long inner) {
  if (angles == nullptr) return a.start + outer * a.count_outer + inner * a.count_inner;
  angles += outer * a.angles_outer + inner * a.angles_inner;
  return a.long_positions ? read_constant<long long>(angles) : read_constant<int>(angles);
}

// cos and sin of N pairs of a row, from pair `first` on.
template <int SOURCE, typename C, int N>
__device__ __forceinline__ void find_angles(C (&cos)[N], C (&sin)[N], const Arguments &a,
                                            long long outer, long long inner, int first) {
  if constexpr (SOURCE == GIVEN) {
    const char *c = a.angles + outer * a.angles_outer + inner * a.angles_inner;
    const char *s = a.sines + outer * a.sines_outer + inner * a.sines_inner;
    read_row(cos, reinterpret_cast<const C *>(c) + first);
    read_row(sin, reinterpret_cast<const C *>(s) + first);
  } else if constexpr (SOURCE == LOOKED_UP) {
    look_up(cos, sin, a, position_of(a, a.angles, outer, inner), first);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const char *angles = a.angles + read_constant<int>(a.component + first + i) * a.angles_component;
      C c[1], s[1];
      look_up(c, s, a, position_of(a, angles, outer, inner), first + i);
      cos[i] = c[0];
      sin[i] = s[0];
    }
  }
  if (a.inverse) {
#pragma unroll
    for (int i = 0; i < N; ++i) sin[i] = negative(sin[i]);
  }
}

// Blocks that are to fit a multiprocessor: as many as registers allow without spilling them, as
// tests/backends/cuda/test_compiles.py checks. Compilers for sm_100 and later keep more values at once.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define BLOCKS(source) ((source) == SEVERAL ? 2 : 3)
#else
#define BLOCKS(source) 2
#endif

// --- the kernel ---------------------------------------------------------------------------------

template <typename P>
__device__ __forceinline__ P row(P x, long long of_outer, long long of_inner, long long outer,
                                 long long inner) {
  return x + outer * of_outer + inner * of_inner;
}

// The N pairs of a few words, turned.
template <typename T, bool READ_PAIRS, bool WRITE_PAIRS, typename W, int WORDS, typename C, int N>
__device__ __forceinline__ void turn(W (&results)[WORDS], const W (&words)[WORDS],
                                     const C (&cos)[N], const C (&sin)[N]) {
  T x[2 * N], y[2 * N];
  memcpy(x, words, sizeof(x));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const C x1 = Element<T>::widen(x[READ_PAIRS ? 2 * i : i]);
    const C x2 = Element<T>::widen(x[READ_PAIRS ? 2 * i + 1 : N + i]);
    y[WRITE_PAIRS ? 2 * i : i] = Element<T>::round(minus(times(x1, cos[i]), times(x2, sin[i])));
    y[WRITE_PAIRS ? 2 * i + 1 : N + i] =
        Element<T>::round(plus(times(x2, cos[i]), times(x1, sin[i])));
  }
  memcpy(results, y, sizeof(y));
}

// T: of q and k. READ_PAIRS, WRITE_PAIRS: whether pairs lie side by side, (2i, 2i+1), or half apart,
// (i, i + r/2). ACCESS: bytes of a load or store. IN_PLACE: whether q or k are written over.
template <typename T, bool READ_PAIRS, bool WRITE_PAIRS, int ACCESS, int SOURCE, bool IN_PLACE>
__global__ void __launch_bounds__(256, BLOCKS(SOURCE)) rotate(const __grid_constant__ Arguments a) {
  using C = typename Element<T>::Computed;
  using W = typename Word<ACCESS>::Type;
  constexpr bool PAIRS = READ_PAIRS && WRITE_PAIRS;
  // Where results lie elsewhere than what they come from, all threads of a head read before any
  // writes.
  constexpr bool TOGETHER = IN_PLACE && READ_PAIRS != WRITE_PAIRS;
  constexpr int SIZE = sizeof(T), EACH = ACCESS / SIZE;     // elements of an access
  constexpr int N = PAIRS && EACH > 1 ? EACH / 2 : EACH;    // pairs of a thread
  constexpr int WORDS = 2 * N / EACH;                       // accesses that they take
  constexpr int HEADS = 4 / WORDS > 1 ? 4 / WORDS : 1;      // read at once: four accesses in flight

  const long long inner = static_cast<long long>(blockIdx.x) * blockDim.z + threadIdx.z;
  const bool present = inner < a.inner;
  if (!TOGETHER && !present) return;
  const int heads = static_cast<int>(a.heads), q_heads = static_cast<int>(a.q_heads);
  for (long long outer = blockIdx.y; outer < a.outer; outer += gridDim.y) {
    for (int lane = threadIdx.x; lane < a.lanes; lane += blockDim.x) {
      const bool turning = lane < a.turning;
      const int first = lane * N;
      // In a head: where the first access lies, read and written, and how far the next one is off.
      int from = static_cast<int>(a.before) + first * SIZE * (READ_PAIRS ? 2 : 1);
      int to = static_cast<int>(a.before) + first * SIZE * (WRITE_PAIRS ? 2 : 1);
      if (!turning) {
        from = to = static_cast<int>((lane - a.turning) * ACCESS);
        if (from >= a.before) from = to = from + static_cast<int>(a.turned);
      }
      const int apart = static_cast<int>(a.pairs) * SIZE;
      const char *const q = row(a.q, a.q_strides.x_outer, a.q_strides.x_inner, outer, inner) + from;
      const char *const k = row(a.k, a.k_strides.x_outer, a.k_strides.x_inner, outer, inner) + from;

      const auto read_head = [&](W (&words)[WORDS], int head) {
        if (!present || head >= heads) return;
        const char *const x = head < q_heads ? q + head * a.q_strides.x_head
                                             : k + (head - q_heads) * a.k_strides.x_head;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
          if (i == 0 || turning) words[i] = read<W, !IN_PLACE>(x + i * (READ_PAIRS ? ACCESS : apart));
        }
      };

      W words[HEADS][WORDS];
      const int step = HEADS * blockDim.y;
#pragma unroll
      for (int u = 0; u < HEADS; ++u) read_head(words[u], threadIdx.y + u * blockDim.y);
      C cos[N], sin[N];
      if (turning && present) find_angles<SOURCE>(cos, sin, a, outer, inner, first);
      char *const q_out =
          row(a.q_out, a.q_strides.out_outer, a.q_strides.out_inner, outer, inner) + to;
      char *const k_out =
          row(a.k_out, a.k_strides.out_outer, a.k_strides.out_inner, outer, inner) + to;

      for (int base = 0; base < heads; base += step) {
        if constexpr (TOGETHER) __syncthreads();
        int head = base + threadIdx.y;
#pragma unroll
        for (int u = 0; u < HEADS; ++u, head += blockDim.y) {
          if (!present || head >= heads) continue;
          char *const y = head < q_heads ? q_out + head * a.q_strides.out_head
                                         : k_out + (head - q_heads) * a.k_strides.out_head;
          W results[WORDS];
          if (turning) {
            turn<T, READ_PAIRS, WRITE_PAIRS>(results, words[u], cos, sin);
          } else {
            results[0] = words[u][0];
          }
          read_head(words[u], head + step);  // before these are written, which takes a while
          if (turning) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
              *reinterpret_cast<W *>(y + i * (WRITE_PAIRS ? ACCESS : apart)) = results[i];
            }
          } else if (!(head < q_heads ? a.q == a.q_out : a.k == a.k_out)) {
            *reinterpret_cast<W *>(y) = results[0];
          }
        }
      }
    }
  }
}
