// What a launch on a GPU depends on, as bytes: where the tensors of a call lie, but for addresses.
#include "entry.h"

namespace {

const int MOST_TENSORS = 16;

struct Signature {
  Entry entry;
  Device device;
  Array tensors[MOST_TENSORS];
  int count;
  I words[MOST_TENSORS * (3 + 2 * MAX_DIMS) + 4];
  int size;

  // Adds a tensor, which must be plain, lie on the same device and have memory.
  bool add(PyObject* object) {
    if (count == MOST_TENSORS || find_library(object) != TORCH) return false;
    Array& x = tensors[count];
    Device own;
    if (!read(entry, object, TORCH, x, &own) || is_empty(x)) return false;
    if (count++ == 0) device = own;
    if (own.type != device.type || own.number != device.number) return false;
    words[size++] = x.dtype;
    words[size++] = x.ndim << 4 | ((intptr_t)x.data & 15);  // kernels access at most 16 bytes
    for (int i = 0; i < x.ndim; i++) words[size++] = x.shape[i];
    for (int i = 0; i < x.ndim; i++) words[size++] = x.strides[i];
    return true;
  }

  bool add_all(PyObject* objects) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(objects); i++)
      if (!add(PyTuple_GetItem(objects, i))) return false;
    return true;
  }
};

// Adds results, of which each is new where it is None, or in place, or overlaps nothing.
bool add_results(Signature& s, PyObject* arrays, PyObject* results) {
  const Py_ssize_t n = PyTuple_Size(results);
  if (n > PyTuple_Size(arrays)) return false;
  const bool versions = n > 0 && counts_versions(TORCH);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* y = PyTuple_GetItem(results, i);
    const bool in_place = y == PyTuple_GetItem(arrays, i);
    s.words[s.size++] = in_place ? 2 : y != Py_None;
    if (y == Py_None) continue;
    if ((versions && !has_version(y)) || (!in_place && !s.add(y))) return false;
    const Array& written = in_place ? s.tensors[i] : s.tensors[s.count - 1];
    for (int j = 0; j < s.count; j++)
      if (&s.tensors[j] != &written && !are_disjoint(written, s.tensors[j])) return false;
  }
  return true;
}

}  // namespace

// sign_tensors(arrays, others, results, recorded): bytes that equal those of tensors that lie like
// these. None where a kernel does not read or write one, or a gradient would be lost that is not
// `recorded`.
PyObject* sign_tensors(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]))
    return fail("sign_tensors takes three tuples and a truth"), nullptr;
  if (!functions[TORCH][EMPTY_LIKE] || is_observed()) return decline();
  Signature s;
  s.count = s.size = 0;
  s.entry.records = args[3] != Py_True && may_record();
  if (!s.add_all(args[0]) || !s.add_all(args[1]) || !add_results(s, args[0], args[2]))
    return decline();
  for (int i = 0; i < 3; i++) s.words[s.size++] = PyTuple_Size(args[i]);
  s.words[s.size++] = (I)s.device.type << 32 | s.device.number;
  return PyBytes_FromStringAndSize((const char*)s.words, s.size * sizeof(I));
}
