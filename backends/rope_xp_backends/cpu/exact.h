// Angles without whole turns, where frequencies or steps are arrays: the steps of
// rope_xp/_rotation/products.py and turns.py. rotate.cpp has this in its namespace.
#pragma once

const int BITS = 11, GRID = 13, F_DIGITS = 8, TURN_DIGITS = 8, WEIGHTS = 5, TOP = 2;
// 1 / (2 pi) in balanced digits n of base 2**11, of weight 2**(-11 n).
const float RADIAN[] = {0, 326, -104, 439, 313, 131, -726, -31, 470};
const double HIGH = 0x1.45f306ep-3, LOW = -0x1.b1bbead603d8bp-34;  // 1 / (2 pi) = HIGH + LOW
const double TURN = 0x1p64;

inline float unit_of(int weight) {  // 2**(BITS * weight)
  const uint32_t bits = (uint32_t)(127 + BITS * weight) << 23;
  return read<float>(&bits);
}
inline float take_fraction(float turns) { return turns - rintf(turns); }

// The rotation by a digit of 1 of each of the first weights 2, 1, ..., -2 is a + b turns: a on a
// grid. Frequencies are converted side by side.
static void build_multipliers(const float* frequencies, I count, int weights, float* a, float* b,
                              I step) {
  const int N = 16;
  typedef Vec<float, N> V;
  auto round = [](V& x) __attribute__((always_inline)) {
    for (int l = 0; l < N; l++) x[l] = rintf(x[l]);
  };
  V f = {}, digits[F_DIGITS], turns[TURN_DIGITS], part[4];
  for (int l = 0; l < count; l++) f[l] = fabsf(frequencies[l]) < 0x1p20f ? frequencies[l] : NAN;
  for (int i = 0; i < F_DIGITS; i++) {
    digits[i] = f * (1 / unit_of(1 - i));
    round(digits[i]);
    f -= digits[i] * unit_of(1 - i);
  }
  for (int n = 0; n < TURN_DIGITS; n++) {
    turns[n] = V{};
    for (int i = 0; i <= n && i < F_DIGITS; i++) turns[n] += digits[i] * RADIAN[n + 1 - i];
  }
  for (int n = TURN_DIGITS - 1; n > 0; n--) {
    V carry = turns[n] * unit_of(-1);
    round(carry);
    turns[n] -= carry * unit_of(1), turns[n - 1] += carry;
  }
  for (int w = 0; w < weights; w++) {
    for (int n = 1; n <= 4; n++) {
      const int digit = TOP - w + n;
      part[n - 1] = (digit < 0 ? V{} : turns[digit]) * unit_of(-n);
    }
    V fraction = part[0], whole = part[0], u;
    round(whole);
    fraction = (fraction - whole) + part[1], whole = fraction;
    round(whole);
    fraction -= whole, u = fraction * (1 << GRID);
    round(u);
    u *= 1.0f / (1 << GRID);
    const V v = (fraction - u) + (part[2] + part[3]);
    memcpy(a + w * step, &u, count * sizeof(float)),
        memcpy(b + w * step, &v, count * sizeof(float));
  }
}

// The digits of a position, and what is left of it. Returns how many they are.
static int split_position(const char* p, Dtype dtype, float* digits, float& rest) {
  if (dtype == FLOAT32) {
    memcpy(&rest, p, 4);
    if (!(fabsf(rest) < (float)LIMIT)) rest = NAN;
    for (int w = 0; w < WEIGHTS; w++) {
      digits[w] = rintf(rest * (1 / unit_of(TOP - w)));
      rest -= digits[w] * unit_of(TOP - w);
    }
    return WEIGHTS;
  }
  I x = read_integer(p, dtype);
  const bool inside = x > -LIMIT && x < LIMIT;
  for (int w = 2; w > 0; w--) {
    const I digit = x & ((1 << BITS) - 1), carry = digit >> (BITS - 1);
    digits[w] = (float)(digit - (carry << BITS)), x = (x >> BITS) + carry;
  }
  digits[0] = inside ? (float)x : NAN;
  return 3;
}

static void multiply(const Products* job) {
  const I n = job->count;
  float *a = job->scratch, *b = a + WEIGHTS * job->components * n,
        *exact = b + WEIGHTS * job->components * n, *rounded = exact + n;
  const I all = job->components * n;
  for (I i = 0; i < all; i += 16)
    build_multipliers(job->frequencies + i, all - i < 16 ? all - i : 16,
                      job->dtype == FLOAT32 ? WEIGHTS : 3, a + i, b + i, all);
  for (I row = 0; row < job->rows; row++) {
    memset(exact, 0, 2 * n * sizeof(float));
    for (I c = 0; c < job->components; c++) {
      float digits[WEIGHTS], rest = 0;
      const char* p = job->positions + (c * job->rows + row) * (job->dtype == INT64 ? 8 : 4);
      const int found = split_position(p, job->dtype, digits, rest);
      for (int w = 0; w < found; w++) {
        const float digit = digits[w], *u = a + (w * job->components + c) * n,
                    *v = b + (w * job->components + c) * n;
        for (I j = 0; j < n; j++) {
          exact[j] += take_fraction(digit * u[j]);
          rounded[j] += digit * v[j];
        }
      }
      if (found == WEIGHTS)
        for (I j = 0; j < n; j++)
          rounded[j] += rest * (job->frequencies[c * n + j] * (float)(0.5 / M_PI));
    }
    for (I j = 0; j < n; j++) {
      const float quarters = rintf((exact[j] + rounded[j]) * 4);
      const float x = ((exact[j] - quarters * 0.25f) + rounded[j]) * (float)(2 * M_PI);
      const float whole = quarters - 4 * floorf(quarters * 0.25f);
      const int32_t turns = whole == whole ? (int32_t)whole : 0;
      const float square = x * x;
      const float odd = evaluate(square, SINE + 4, 4), even = evaluate(square, COSINE + 3, 5);
      const float s = x + (x * square) * odd, c = 1 + square * even;
      const float swapped_c = turns & 1 ? s : c, swapped_s = turns & 1 ? c : s;
      exact[j] = (turns + 1) & 2 ? -swapped_c : swapped_c;
      rounded[j] = turns & 2 ? -swapped_s : swapped_s;
    }
    float* to = job->table + 2 * row * n;
    for (I j = 0; j < n; j += job->width, to += 2 * job->width) {
      memcpy(to, exact + j, job->width * sizeof(float));
      memcpy(to + job->width, rounded + j, job->width * sizeof(float));
    }
  }
}

// Adds steps to states. Those out of range count as none, by bits: compilers make loops of vectors
// where nothing branches.
template <class T> uint64_t add_steps(const T* __restrict steps, T* __restrict angles,
                                      uint64_t* __restrict states, I count) {
  uint64_t outside = 0;
  for (I j = 0; j < count; j++) {
    double x = (double)steps[j];
    uint64_t bits = read<uint64_t>(&x);
    const uint64_t kept = -(uint64_t)(fabs(x) < 0x1p16);
    outside |= ~kept, bits &= kept;
    x = read<double>(&bits);
    const double top = sizeof(T) == 8 ? (double)(float)x : x, turns = top * HIGH;
    double part = turns - ((turns + 0x1.8p52) - 0x1.8p52);  // to the nearest, ties to even
    // Half a turn is one back, as 2**63 is no integer of 64 bits.
    bits = -(uint64_t)(part >= 0.5) & 0x3ff0000000000000;
    part -= read<double>(&bits);
    uint64_t step = (uint64_t)(I)(part * TURN) + (uint64_t)(I)(top * (LOW * TURN));
    if (sizeof(T) == 8) step += (uint64_t)(I)((x - top) * ((HIGH + LOW) * TURN));
    states[j] += step;
    angles[j] = (T)((double)(I)states[j] * (2 * M_PI / TURN));
  }
  return outside;
}

template <class T> bool sum_rows(const Sums* job, const T* steps, T* angles, I first, I last) {
  uint64_t outside = 0;
  for (I t = first; t < last; t++) {
    const I at = t * job->inner;
    outside |= add_steps(steps + at, angles + at, (uint64_t*)job->state, job->inner);
  }
  return !outside;
}

static bool sum(const Sums* job, I first, I last) {
  if (job->dtype == FLOAT64)
    return sum_rows(job, (const double*)job->steps, (double*)job->angles, first, last);
  return sum_rows(job, (const float*)job->steps, (float*)job->angles, first, last);
}
