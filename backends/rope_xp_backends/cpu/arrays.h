// Arrays of numpy and torch as kernels see them: where they lie, and whether they overlap.
#pragma once
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "rotate.h"

// A reference to an object, dropped at the end of its scope.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* o = nullptr) : object(o) {}
  ~Ref() { Py_XDECREF(object); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  operator PyObject*() const { return object; }
};

struct Extent {
  I start, end;  // bytes around an address
};

struct Array {
  char* data;
  Extent extent;
  Dtype dtype;
  int ndim;
  bool writeable;
  I shape[MAX_DIMS], strides[MAX_DIMS];  // strides in bytes
};

const int SIZES[] = {2, 2, 4, 8, 4, 8, 0};

inline bool is_float(Dtype dtype) { return dtype <= FLOAT64; }
bool is_empty(const Array& x);
bool is_contiguous(const Array& x);
void set_contiguous(Array& x, char* data);  // and its strides
I count_elements(const Array& x);

// Where an element lies, by its index in the first axes.
inline const char* find_element(const Array& x, int ndim, I index) {
  const char* p = x.data;
  for (int i = ndim - 1; i >= 0; index /= x.shape[i--]) p += index % x.shape[i] * x.strides[i];
  return p;
}

enum Library { OTHER, NUMPY, TORCH };

// The library of an object whose class is exactly that of its arrays.
Library find_library(PyObject* object);

// Functions of a library. The first two are needed to read its arrays and run calls, the others to
// take calls as users write them. Those of torch say what sees or changes operations on tensors.
enum {
  DESCRIBE,
  LIMIT_THREADS,
  EMPTY_LIKE,
  EMPTY,
  ALLOCATE_LARGE,
  FUNCTION_MODES,
  TRANSFORMS,
  DISPATCH_MODES,
  IS_TRACING,
  IS_PROFILED,
  IS_OBSERVED,
  IS_GRAD_ENABLED,
  IS_INFERENCE_ENABLED,
  IS_NEGATED,
  INCREMENT_VERSIONS,
  FORWARD_MODE,
  FUNCTIONS
};
extern PyObject* functions[3][FUNCTIONS];

struct Device {
  int32_t type, number;  // as DLPack has them
};

// Reads an aligned array of a library, by its fields where they are known, or by what its
// describe(x) returns: its address, the number of its dtype, its shape, its strides in bytes, and
// whether it is writeable. Returns false where it cannot, mostly without an error; so does it where
// the memory is not a CPU's, unless `device` is to tell whose.
bool read_fields(PyObject* object, Library library, Array& x, Device* device = nullptr);

// Does the same for any object, which is one of torch if its class is not known. Sets an error and
// returns false if it does not fit. An array without memory, such as a functional tensor, is
// `absent`.
bool read_array(PyObject* object, Array& x, bool& absent);

bool read_ints(PyObject* sequence, I* to, int most, int* count);

// Whether two arrays have no byte in common, as far as that is easy to see: they lie apart, or in
// each period of a stride, as slices of one projection do.
bool are_disjoint(const Array& x, const Array& y);

// Whether elements of an array may share memory.
bool may_overlap_itself(const Array& x);

bool fail(const char* message);               // sets a ValueError, and returns false
void replace(PyObject*& held, PyObject* by);  // what was held goes

PyObject* set_up_dtypes(PyObject*, PyObject* dtypes);
PyObject* set_up_library(PyObject*, PyObject* args);
