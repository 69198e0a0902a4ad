// The CUDA kernel: angles, q and k in one launch, one pass over memory.
//
// A thread rotates a few neighbouring pairs of one token in several heads, so that it computes
// their angles once. Threads in x share a head, in y a token. Each step is the portable path's, in the
// same order and without fused multiply-add, so results are equal in every bit.
//
// Compiled by NVRTC, and by g++ where tests run it on a CPU.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Strides {  // of an axis of rows, in bytes; of implicit positions, in tokens
  long long q, k, q_out, k_out, angles, sines, count, slots;
};

struct Arguments {  // 64 bits each: cuda_plan.py lists them in the same order
  const char *q, *k;
  char *q_out, *k_out;
  const char *angles;       // positions, or null for 0, 1, 2, ...; or cosines
  const char *sines;        // null where angles are looked up
  const float *low, *middle, *high;
  const int *component;     // which position component each pair reads, where there are several
  const char *slots;        // of a cache, to which keys go; null where they go to a result
  long long outer, inner;   // lengths of two axes that hold all tokens of all batches
  Strides outer_strides, inner_strides;
  long long q_heads, heads; // of q; of q and k
  long long q_head, k_head, q_out_head, k_out_head;  // strides of heads, in bytes
  long long angles_component, start;  // stride of position components; first implicit position
  long long pairs;          // r / 2
  long long before, turned; // bytes in front of the rotated slice, and in it
  long long turning, lanes; // threads that share a head: those that rotate, and all
  long long long_positions; // whether they have 64 bits, else 32
  long long inverse;
  const char *q_weight, *k_weight;  // of a norm, in the dtype of q and k; null where it has none
  double share, eps, weight_offset;  // share: 1 / components that are normalized
  long long long_slots;     // whether they have 64 bits, else 32
  long long page, limit;    // slots of a page, and of all; others are not written
  long long page_step, slot_step;  // in bytes; pages are apart by 0 where there is one
};

// As in rope_xp/_rotation/tables.py.
#define DIGIT_BITS 11
#define DIGIT_MASK 2047
#define TOP_DIGIT 512
#define LIMIT 2147483648LL

// Sources of angles: tables of the call, one position a token, several.
#define COS_SIN 0
#define TABLE_LOOKUP 1
#define COMPONENTS 2

// --- numbers ------------------------------------------------------------------------------------

template <typename C> __device__ __forceinline__ C times(C a, C b) { return a * b; }
template <typename C> __device__ __forceinline__ C plus(C a, C b) { return a + b; }
template <typename C> __device__ __forceinline__ C minus(C a, C b) { return a - b; }
template <typename C> __device__ __forceinline__ C negative(C a) { return -a; }
#ifdef __CUDA_ARCH__
// In PTX, as cupy compiles everything with -ftz=true, which takes small numbers for zero.
#define ROUNDED(name, op) \
  template <> __device__ __forceinline__ float name(float a, float b) { \
    float c; \
    asm(op ".rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); \
    return c; \
  }
ROUNDED(times, "mul")
ROUNDED(plus, "add")
ROUNDED(minus, "sub")
template <> __device__ __forceinline__ float negative(float a) {
  float c;
  asm("neg.f32 %0, %1;" : "=f"(c) : "f"(a));
  return c;
}
// Within 2 ulp, as torch.rsqrt on a GPU.
__device__ __forceinline__ float reciprocal_root(float a) { return rsqrtf(a); }
__device__ __forceinline__ double reciprocal_root(double a) { return rsqrt(a); }
#else
template <typename C> C reciprocal_root(C a) { return 1 / std::sqrt(a); }
#endif

template <typename T> struct Element { using Computed = float; };
template <> struct Element<double> { using Computed = double; };

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
  const Strides &of_outer = a.outer_strides, &of_inner = a.inner_strides;
  if (angles == nullptr) return a.start + outer * of_outer.count + inner * of_inner.count;
  angles += outer * of_outer.angles + inner * of_inner.angles;
  return a.long_positions ? read_constant<long long>(angles) : read_constant<int>(angles);
}

// cos and sin of N pairs of a row, from pair `first` on.
template <int SOURCE, typename C, int N>
__device__ __forceinline__ void find_angles(C (&cos)[N], C (&sin)[N], const Arguments &a,
                                            long long outer, long long inner, int first) {
  if constexpr (SOURCE == COS_SIN) {
    const char *c = a.angles + outer * a.outer_strides.angles + inner * a.inner_strides.angles;
    const char *s = a.sines + outer * a.outer_strides.sines + inner * a.inner_strides.sines;
    read_row(cos, reinterpret_cast<const C *>(c) + first);
    read_row(sin, reinterpret_cast<const C *>(s) + first);
  } else if constexpr (SOURCE == TABLE_LOOKUP) {
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

// Whether the key of a row goes to a slot of the cache, and its distance in bytes.
__device__ __forceinline__ bool find_slot(const Arguments &a, long long outer, long long inner,
                                          long long &distance) {
  const char *const at = a.slots + outer * a.outer_strides.slots + inner * a.inner_strides.slots;
  const long long slot = a.long_slots ? read_constant<long long>(at) : read_constant<int>(at);
  if (slot < 0 || slot >= a.limit) return false;
  distance = slot * a.slot_step;
  if (a.page_step == 0) return true;
  // Pages are counted in 32 bits, as 64 take 100 instructions.
  const unsigned of_pages = static_cast<unsigned>(slot), page = static_cast<unsigned>(a.page);
  distance = of_pages / page * a.page_step + of_pages % page * a.slot_step;
  return true;
}

// Blocks that are to fit a multiprocessor: as many as registers allow without spilling them, as
// tests/backends/cuda/test_compiles.py checks. Compilers for sm_100 and later keep more values at once.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define BLOCKS(source, norm) ((source) == COMPONENTS || (norm) ? 2 : 3)
#else
#define BLOCKS(source, norm) 2
#endif
#define THREADS 256
#define WARP 32u

// --- the kernel ---------------------------------------------------------------------------------

// Return the sum of squares of a few words.
template <typename T, typename C, typename W, int WORDS>
__device__ __forceinline__ C sum_squares(const W (&words)[WORDS]) {
  constexpr int COUNT = sizeof(words) / sizeof(T);
  T x[COUNT];
  memcpy(x, words, sizeof(x));
  C sum = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    sum = plus(sum, times(C(x[i]), C(x[i])));
  }
  return sum;
}

// Add up what the threads of a head have, whose number in x is a power of two.
template <typename C, int HEADS> __device__ __forceinline__ void sum_threads(C (&sums)[HEADS]) {
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned count = blockDim.x < WARP ? blockDim.x : WARP, lane = thread % WARP;
  const unsigned mask = ~0u >> (WARP - count) << (lane & ~(count - 1));
  for (unsigned apart = 1; apart < count; apart *= 2) {
#pragma unroll
    for (int u = 0; u < HEADS; ++u) {
      sums[u] = plus(sums[u], __shfl_xor_sync(mask, sums[u], apart));
    }
  }
  if (blockDim.x <= WARP) return;
  __shared__ C of_warps[HEADS][THREADS / WARP];
  if (lane == 0) {
#pragma unroll
    for (int u = 0; u < HEADS; ++u) of_warps[u][thread / WARP] = sums[u];
  }
  __syncthreads();
  const unsigned first = (thread - threadIdx.x) / WARP;
#pragma unroll
  for (int u = 0; u < HEADS; ++u) {
    sums[u] = of_warps[u][first];
#pragma unroll 1
    for (unsigned i = 1; i < blockDim.x / WARP; ++i) sums[u] = plus(sums[u], of_warps[u][first + i]);
  }
  __syncthreads();  // before the sums of other heads are written
}

// Rotate the N pairs of a few words, with a norm by weights and the factor of their row.
template <typename T, bool INTERLEAVED_IN, bool INTERLEAVED_OUT, bool NORM, typename W, int WORDS,
          typename C, int N>
__device__ __forceinline__ void turn(W (&results)[WORDS], const W (&words)[WORDS],
                                     const C (&cos)[N], const C (&sin)[N],
                                     const W (&weights)[WORDS], bool weighted, C offset, C factor) {
  T x[2 * N], y[2 * N], w[2 * N];
  memcpy(x, words, sizeof(x));
  if constexpr (NORM) memcpy(w, weights, sizeof(w));
  const auto scale = [&](C result) { return NORM ? times(result, factor) : result; };
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int first = INTERLEAVED_IN ? 2 * i : i, second = INTERLEAVED_IN ? 2 * i + 1 : N + i;
    C x1 = C(x[first]), x2 = C(x[second]);
    if constexpr (NORM) {
      if (weighted) {
        x1 = times(x1, plus(C(w[first]), offset));
        x2 = times(x2, plus(C(w[second]), offset));
      }
    }
    y[INTERLEAVED_OUT ? 2 * i : i] = T(scale(minus(times(x1, cos[i]), times(x2, sin[i]))));
    y[INTERLEAVED_OUT ? 2 * i + 1 : N + i] =
        T(scale(plus(times(x2, cos[i]), times(x1, sin[i]))));
  }
  memcpy(results, y, sizeof(y));
}

// T: of q and k. INTERLEAVED_IN, INTERLEAVED_OUT: whether pairs are (2i, 2i+1), else (i, i + r/2).
// ACCESS: bytes of a load or store. IN_PLACE: whether q or k are overwritten. NORM: whether the
// rotated slice is normalized; then a block has all threads of a head, and their number in x is a
// power of two.
template <typename T, bool INTERLEAVED_IN, bool INTERLEAVED_OUT, int ACCESS, int SOURCE,
          bool IN_PLACE, bool NORM>
__global__ void __launch_bounds__(THREADS, BLOCKS(SOURCE, NORM))
    rotate(const __grid_constant__ Arguments a) {
  using C = typename Element<T>::Computed;
  using W = typename Word<ACCESS>::Type;
  constexpr bool PAIRS = INTERLEAVED_IN && INTERLEAVED_OUT;
  // Where results lie elsewhere than what they come from, all threads of a head read before any
  // writes.
  constexpr bool TOGETHER = IN_PLACE && INTERLEAVED_IN != INTERLEAVED_OUT;
  constexpr int SIZE = sizeof(T), EACH = ACCESS / SIZE;     // elements of an access
  constexpr int N = PAIRS && EACH > 1 ? EACH / 2 : EACH;    // pairs of a thread
  constexpr int WORDS = 2 * N / EACH;                       // accesses that they take
  constexpr int HEADS = 4 / WORDS > 1 ? 4 / WORDS : 1;      // read at once: four accesses in flight

  const Strides &of_outer = a.outer_strides, &of_inner = a.inner_strides;
  const long long inner = static_cast<long long>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (!TOGETHER && !NORM && inner >= a.inner) return;
  const int heads = static_cast<int>(a.heads), q_heads = static_cast<int>(a.q_heads);
  for (long long outer = blockIdx.y; outer < a.outer; outer += gridDim.y) {
    for (int lane = threadIdx.x; lane < (NORM ? blockDim.x : a.lanes); lane += blockDim.x) {
      const bool turning = lane < a.turning, present = inner < a.inner && lane < a.lanes;
      const int first = lane * N;
      // In a head: where the first access lies, read and written, and how far the next one is off.
      int from = static_cast<int>(a.before) + first * SIZE * (INTERLEAVED_IN ? 2 : 1);
      int to = static_cast<int>(a.before) + first * SIZE * (INTERLEAVED_OUT ? 2 : 1);
      if (!turning) {
        from = to = static_cast<int>((lane - a.turning) * ACCESS);
        if (from >= a.before) from = to = from + static_cast<int>(a.turned);
      }
      const int half_stride = static_cast<int>(a.pairs) * SIZE;
      const char *const q = a.q + outer * of_outer.q + inner * of_inner.q + from;
      const char *const k = a.k + outer * of_outer.k + inner * of_inner.k + from;

      const auto read_head = [&](W (&words)[WORDS], int head) {
        if (!present || head >= heads) return;
        const char *const x =
            head < q_heads ? q + head * a.q_head : k + (head - q_heads) * a.k_head;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
          const char *const from = x + i * (INTERLEAVED_IN ? ACCESS : half_stride);
          if (i == 0 || turning) words[i] = read<W, !IN_PLACE>(from);
        }
      };

      W words[HEADS][WORDS];
      const int step = HEADS * blockDim.y;
#pragma unroll
      for (int u = 0; u < HEADS; ++u) read_head(words[u], threadIdx.y + u * blockDim.y);
      C cos[N], sin[N];
      if (turning && present) find_angles<SOURCE>(cos, sin, a, outer, inner, first);
      char *const q_out = a.q_out + outer * of_outer.q_out + inner * of_inner.q_out + to;
      char *k_out = a.k_out + outer * of_outer.k_out + inner * of_inner.k_out + to;
      bool stored = true;
      if (a.slots != nullptr && present) {
        long long distance = 0;
        stored = find_slot(a, outer, inner, distance);
        k_out += distance;
      }

      for (int base = 0; base < heads; base += step) {
        if constexpr (TOGETHER) __syncthreads();
        int head = base + threadIdx.y;
        C factors[HEADS];
        if constexpr (NORM) {
          C sums[HEADS];
#pragma unroll
          for (int u = 0; u < HEADS; ++u) {
            const bool summed = turning && present && head + u * blockDim.y < heads;
            sums[u] = summed ? sum_squares<T, C>(words[u]) : C(0);
          }
          sum_threads(sums);
#pragma unroll
          for (int u = 0; u < HEADS; ++u) {
            factors[u] = reciprocal_root(plus(times(sums[u], C(a.share)), C(a.eps)));
          }
        }
#pragma unroll
        for (int u = 0; u < HEADS; ++u, head += blockDim.y) {
          if (!present || head >= heads) continue;
          char *const y = head < q_heads ? q_out + head * a.q_out_head
                                         : k_out + (head - q_heads) * a.k_out_head;
          W results[WORDS];
          if (turning) {
            W weights[WORDS];
            const char *const weight = head < q_heads ? a.q_weight : a.k_weight;
            if constexpr (NORM) {
#pragma unroll
              for (int i = 0; i < WORDS && weight != nullptr; ++i) {
                weights[i] = read_constant<W>(weight + from - a.before +
                                              i * (INTERLEAVED_IN ? ACCESS : half_stride));
              }
            }
            turn<T, INTERLEAVED_IN, INTERLEAVED_OUT, NORM>(results, words[u], cos, sin, weights,
                                                           weight != nullptr, C(a.weight_offset),
                                                           factors[u]);
          } else {
            results[0] = words[u][0];
          }
          read_head(words[u], head + step);  // before these are written, which takes a while
          if (head >= q_heads && !stored) continue;
          if (turning) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
              *reinterpret_cast<W *>(y + i * (INTERLEAVED_OUT ? ACCESS : half_stride)) = results[i];
            }
          } else if (!(head < q_heads ? a.q == a.q_out : a.k == a.k_out)) {
            *reinterpret_cast<W *>(y) = results[0];
          }
        }
      }
    }
  }
}
