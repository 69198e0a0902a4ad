// A rotation as plain data: what call.cpp prepares and the kernels of rotate.cpp read.
#pragma once
#include <stdint.h>

typedef int64_t I;

enum Dtype { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64, NO_DTYPE };

// Arrays that have a stride along each axis of batch and tokens, in bytes. ANGLES_A and ANGLES_B
// are positions and their fractions, or cos and sin.
enum Strided { Q_IN, Q_OUT, K_IN, K_OUT, ANGLES_A, ANGLES_B, SLOTS, STRIDED };

const int MAX_DIMS = 16, MAX_SEGMENTS = 8;
const I LIMIT = I(1) << 31;  // bound of the modulus of positions
const int DIGIT_BITS = 11;   // positions have three digits in base 2048
const I DIGIT = I(1) << DIGIT_BITS;
const int INNER = 32, OUTER = 64;             // small tables have rows of two digits of each digit
const I TOP_DIGIT = LIMIT >> 2 * DIGIT_BITS;  // the row of NaNs, for positions out of range

inline I read_integer(const char* p, Dtype dtype) {
  I wide;
  int32_t narrow;
  if (dtype == INT64) return __builtin_memcpy(&wide, p, 8), wide;
  return __builtin_memcpy(&narrow, p, 4), narrow;
}

struct Dim {
  I length;
  I steps[STRIDED];
};

struct Segment {  // of frequencies, from the end of the one before
  I component, end;
};

struct Operand {  // q or k
  const char* x;
  char* y;
  I heads, x_head, y_head;
  const char* weight;  // of the norm, contiguous; null for none
  Dtype weight_dtype;
};

struct Job {
  Dtype dtype, angle_dtype;  // of arrays; of positions, or of cos and sin
  bool interleaved_in;       // pairs of the input are (2i, 2i+1), not (i, i + pairs)
  bool interleaved_out;      // those of the output are
  bool inverse;
  bool normalized;
  bool normalizes_rest;    // components outside the slice too
  bool lookup;             // angles are looked up in digit tables, not given as cos and sin
  bool is_large;           // results leave the last cache before they are read
  I before, pairs, after;  // before and after: components beside the rotated slice
  I components;            // of positions; 1 without an axis of them
  I block;                 // tokens whose cos and sin are computed together
  I rows;                  // product of the lengths of dims
  int ndim;
  Dim dims[MAX_DIMS];  // collapsed axes of batch and tokens; the last counts implicit positions
  int operands;
  Operand operand[2];
  const void *low, *middle, *high, *frequencies;
  const double *inner,
      *outer;                // small tables, from which rows of those are computed if low is null
  double factor;             // of low rows of small tables
  const int32_t* component;  // that each frequency reads; null where all read the first
  I segments;  // runs of frequencies that read one component; 0: each is looked up apart
  Segment segment[MAX_SEGMENTS];
  const char *a, *b;  // null: implicit positions; no fractions
  I a_last, b_last;   // strides of components of positions, or of pairs of cos and sin
  const char* slots;  // of a cache, which is the result of the last operand; null for none
  Dtype slot_dtype;
  I limit, page;  // slots of the cache, or of a sequence, and of a page; 0 where it has no pages
  I slot_step, page_step;
  double eps, weight_offset;
};

struct Products {  // of positions, (components, rows), and frequencies, (components, count)
  Dtype dtype;     // of positions
  I components, rows, count, width;  // width: of a head, whose cos stand before its sin
  const char* positions;
  const float* frequencies;
  float *table, *scratch;  // (rows, 2 * count); count * (10 * components + 2)
};

struct Sums {  // of steps, (tokens, inner), from a state on, (inner,)
  Dtype dtype;
  I inner;
  const char* steps;
  char* angles;
  I* state;
};

struct Kernels {
  I (*count_scratch)(const Job*);                              // bytes of scratch that a part needs
  void (*rotate)(const Job*, I start, I stop, char* scratch);  // rows start to stop
  void (*multiply)(const Products*);
  bool (*sum)(const Sums*, I first, I last);  // whether all steps are in range
};
