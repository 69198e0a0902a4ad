// Rotary embedding as engines write it by hand: in place, cos and sin of each position from a cache
// (positions, 2, pairs), one loop a row. See rival_calls.py.
#include <torch/extension.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

template <typename T> struct Half {  // pairs (i, i + pairs)
    static void rotate(T *x, const float *cos, const float *sin, int64_t pairs) {
#pragma GCC ivdep
        for (int64_t i = 0; i < pairs; i++) {
            float a = x[i], b = x[i + pairs];
            x[i] = a * cos[i] - b * sin[i], x[i + pairs] = b * cos[i] + a * sin[i];
        }
    }
};

template <typename T> struct Interleaved {  // pairs (2i, 2i + 1)
    static void rotate(T *x, const float *cos, const float *sin, int64_t pairs) {
#pragma GCC ivdep
        for (int64_t i = 0; i < pairs; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cos[i] - b * sin[i], x[2 * i + 1] = b * cos[i] + a * sin[i];
        }
    }
};

#ifdef __AVX512BF16__
inline __m512 load(const c10::BFloat16 *x) {
    __m256i bits = _mm256_loadu_si256((const __m256i *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store(c10::BFloat16 *x, __m512 y) {
    _mm256_storeu_si256((__m256i *)x, (__m256i)_mm512_cvtneps_pbh(y));
}

template <> struct Half<c10::BFloat16> {
    static void rotate(c10::BFloat16 *x, const float *cos, const float *sin, int64_t pairs) {
        for (int64_t i = 0; i < pairs; i += 16) {
            __m512 a = load(x + i), b = load(x + i + pairs);
            __m512 c = _mm512_loadu_ps(cos + i), s = _mm512_loadu_ps(sin + i);
            store(x + i, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
            store(x + i + pairs, _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s)));
        }
    }
};
#endif

template <typename T, template <typename> class Layout>
void rotate_all(at::Tensor &x, const at::Tensor &positions, const at::Tensor &cache) {
    T *data = x.data_ptr<T>();
    const int64_t *p = positions.data_ptr<int64_t>();
    const float *rows = cache.data_ptr<float>();
    int64_t heads = x.size(-2), dim = x.size(-1), tokens = x.numel() / (heads * dim);
    at::parallel_for(0, tokens, 32, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const float *cos = rows + p[t] * dim, *sin = cos + dim / 2;
            for (int64_t h = 0; h < heads; h++) Layout<T>::rotate(data + (t * heads + h) * dim, cos, sin, dim / 2);
        }
    });
}

template <template <typename> class Layout>
void rotate(at::Tensor &x, const at::Tensor &positions, const at::Tensor &cache) {
    if (x.scalar_type() == at::kFloat) rotate_all<float, Layout>(x, positions, cache);
    else rotate_all<c10::BFloat16, Layout>(x, positions, cache);
}

void rope(at::Tensor q, at::Tensor k, const at::Tensor &positions, const at::Tensor &cache, bool interleaved) {
    TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && positions.numel() * q.size(-2) * q.size(-1) == q.numel());
    for (at::Tensor *x : {&q, &k}) interleaved ? rotate<Interleaved>(*x, positions, cache) : rotate<Half>(*x, positions, cache);
}

}  // namespace

TORCH_LIBRARY(rope_xp_engine, library) {
    library.def("rope(Tensor(a!) q, Tensor(b!) k, Tensor positions, Tensor cache, bool interleaved) -> ()");
    library.impl("rope", c10::DispatchKey::CPU, &rope);
}
