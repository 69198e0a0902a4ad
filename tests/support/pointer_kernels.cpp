// Kernels of engines that read tables by pointers, with faults. A position behind the table ends the
// process, as reading there may.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

// Tokens of (tokens, heads, head_dim), at positions, or at those that follow on from a start. Tables
// have rows of r/2 numbers, `stride` apart. With angles, cos is a table of angles, each twice.
extern "C" void rotate(float* x, const float* cos, const float* sin, int64_t rows, int64_t stride,
                       const int64_t* positions, int64_t tokens, int64_t heads, int64_t head_dim,
                       int64_t pairs, int neighbours, float sign) {
  for (int64_t token = 0; token < tokens; token++) {
    if (positions[token] < 0 || positions[token] >= rows) abort();
    const float* c = cos + positions[token] * stride;
    const float* s = sin ? sin + positions[token] * stride : nullptr;
    for (int64_t head = 0; head < heads; head++, x += head_dim)
      for (int64_t i = 0; i < pairs; i++) {
        float *first = x + (neighbours ? 2 * i : i), *second = first + (neighbours ? 1 : pairs);
        const float a = *first, b = *second, u = s ? c[i] : cosf(c[neighbours ? 2 * i : i]),
                    v = sign * (s ? s[i] : sinf(c[neighbours ? 2 * i : i]));
        *first = a * u - b * v, *second = b * u + a * v;
      }
  }
}
