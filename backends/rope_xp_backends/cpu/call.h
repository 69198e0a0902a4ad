// A rotation of arrays that are read: its checks, its job, and its threads.
#pragma once
#include "arrays.h"

struct Axes {
  I batch_tokens[MAX_DIMS];  // batch, then tokens
  int count;
  I heads;  // -1 for none
};

struct Call {
  Job job;
  Axes axes;
  Array *x, *y;               // arrays and results
  Array weight[2], angle[2];  // a weight without axes is none
  Array slots;                // read if the job has slots
  int arrays, weights, angles;
  I table_heads;    // of cos and sin that differ by head; 1 for none
  I head_steps[2];  // of cos and of sin, from head to head
};

// Digit tables, with a reference to what they lie in. Whoever keeps a pointer to them counts in
// `keepers`. They are evicted with the capsule that owns them: then `owner` is null.
struct Tables {
  PyObject* owner;
  I keepers;
  Dtype dtype;
  I pairs, components;  // components: of positions, 0 without an axis of them
  bool takes_fractions;
  const void *low, *middle, *high;  // null in small tables
  const void* frequencies;          // may be null
  const int32_t* component;         // null where positions have one component
  const double *inner, *outer;      // of small tables
  double factor;
  I rows;  // that calls have computed from small tables
};

Tables* get_tables(PyObject* capsule);  // null and an error for another object
void drop(Tables* tables);              // one keeper less

// The checks of a call, in this order. They set an error and return false.
bool place_operands(Call& call);
bool read_angles(Call& call, int columns);
bool place_tables(Call& call, const Tables* tables, bool has_components);

// Reads names of axes, or takes those that are usual if they are None. The last is head_dim.
bool name_axes(PyObject* given, int ndim, Axes& axes);

// Makes slots of a cache, its last result, that of the last array. Returns false, without an error,
// where they do not fit.
bool place_slots(Call& call, PyObject* names);

void collapse(Call& call);              // the axes of a checked call
bool run(Call& call, Library library);  // false and an error if it cannot

enum {
  RELEASE_BYTES,
  THREAD_ELEMENTS,
  TABLE_ROWS,
  LARGE_BYTES,
  ANGLE_BYTES,
  FAR_BYTES,
  FAR_ANGLE_BYTES,
  THRESHOLDS
};
I find_threshold(int i);
const Kernels* find_kernels();  // of the instruction set in use

PyObject* read_tables(PyObject*, PyObject* args);
PyObject* rotate(PyObject*, PyObject* const* args, Py_ssize_t count);
// entry.cpp
bool intern_names();
PyObject* rotate_by_rope(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* rotate_by_tables(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* look_up_angles(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* multiply_angles(PyObject*, PyObject* const* args, Py_ssize_t count);  // exact.cpp
PyObject* accumulate_angles(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* set_up_calls(PyObject*, PyObject* args);
PyObject* sign_tensors(PyObject*, PyObject* const* args, Py_ssize_t count);  // signature.cpp
