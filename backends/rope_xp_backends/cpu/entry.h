// What the entry shares with others: arguments as users write them, and what sees tensors.
#pragma once
#include "call.h"

struct Entry {
  Library library;
  bool records;   // whether autograd records operations on tensors
  bool to_slots;  // whether the last result is a cache
  int how, arrays;
  PyObject *objects[2], *outs[2];
  bool in_place[2];
  Call call[2];  // the second for k with positions of its own
  int calls;
  Array x[2], y[2], angle[4];
  int angles;
  // Memory for positions that are no arrays, or not of integers: of a few, or else allocated.
  I few[3][64];
  char* buffers[5];  // the last two of copies of q and k
  Ref given;         // results, if they came in a list
  Entry() : buffers{} {}
  ~Entry() {
    for (char* buffer : buffers)
      if (buffer) free(buffer);
  }
};

// Whether calls on arrays like x are taken, as nothing sees or changes what happens to them.
bool takes(Entry& e, PyObject* x);

// Whether a mode, transform, tracer or profiler sees operations on tensors.
bool is_observed();

// Whether autograd records operations on tensors.
bool may_record();

// Whether versions of tensors grow as they are written. Those that were made under inference_mode
// have none, and are written only there.
bool counts_versions(Library library);
bool has_version(PyObject* tensor);

// Reads an array, of which no gradient is recorded.
bool read(const Entry& e, PyObject* object, Library library, Array& x, Device* device = nullptr);

// Reads an array of positions, or numbers of Python, into a place of its own.
bool read_positions(Entry& e, PyObject* positions, int place, Array& x);

// Copies an array that is not contiguous, if it is small: the slow path copies large ones in a
// better order.
bool make_contiguous(Array& x, char*& buffer);

// Returns a new contiguous array of FLOAT32, FLOAT64 or INT64, which is read too.
PyObject* allocate(const Entry& e, const I* shape, int ndim, Dtype dtype, Array& x);

// Returns None, where it was our own check that failed, or the error of what was called.
PyObject* decline();
