// Python's side of exact.h: reads arguments, which numpy has made contiguous.
#include <stdlib.h>

#include "call.h"

namespace {

bool read_all(PyObject* const* args, int count, PyObject* describe, Array* x) {
  bool absent = false;
  for (int i = 0; i < count; i++)
    if (!read_array(args[i], describe, x[i], absent)) return false;
  for (int i = 0; i < count; i++)
    if (!is_contiguous(x[i]) || absent) return fail("an array is not contiguous");
  return true;
}

}  // namespace

// multiply(positions, frequencies, cos, sin, describe): writes cos and sin, (rows, count) each, of
// sums of products of positions, (components, rows), and frequencies, (components, count).
PyObject* multiply(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Array x[4];
  if (count != 5) return fail("multiply takes five arguments"), nullptr;
  if (!read_all(args, 4, args[4], x)) return nullptr;
  const Array &p = x[0], &f = x[1], &cos = x[2], &sin = x[3];
  bool fits = p.ndim == 2 && f.ndim == 2 && cos.ndim == 2 && sin.ndim == 2;
  fits = fits && f.dtype == FLOAT32 && cos.dtype == FLOAT32 && sin.dtype == FLOAT32 &&
         (p.dtype == FLOAT32 || !is_float(p.dtype)) && cos.writeable && sin.writeable;
  fits = fits && p.shape[0] == f.shape[0] && cos.shape[0] == p.shape[1] &&
         cos.shape[1] == f.shape[1] && sin.shape[0] == p.shape[1] && sin.shape[1] == f.shape[1];
  if (!fits) return fail("positions and frequencies do not fit cos and sin"), nullptr;
  const I elements = f.shape[1] * (2 * 5 * f.shape[0] + 2);
  float* scratch = (float*)malloc(elements * sizeof(float) + 1);
  if (!scratch) return PyErr_NoMemory();
  const Products job = {p.dtype,          f.shape[0],       p.shape[1],
                        f.shape[1],       p.data,           (const float*)f.data,
                        (float*)cos.data, (float*)sin.data, scratch};
  PyThreadState* state = PyEval_SaveThread();
  find_kernels()->multiply(&job);
  PyEval_RestoreThread(state);
  free(scratch);
  Py_RETURN_NONE;
}

// accumulate(steps, state, ends, angles, describe): writes the angles of sums of steps, (outer,
// tokens, inner), of sequences from ends to ends, and adds to their states, (outer, sequences,
// inner). Returns whether all steps lie in range.
PyObject* accumulate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Array x[4];
  if (count != 5) return fail("accumulate takes five arguments"), nullptr;
  if (!read_all(args, 4, args[4], x)) return nullptr;
  const Array &steps = x[0], &state = x[1], &ends = x[2], &angles = x[3];
  bool fits = steps.ndim == 3 && state.ndim == 3 && ends.ndim == 1 && angles.ndim == 3;
  fits = fits && (steps.dtype == FLOAT32 || steps.dtype == FLOAT64) &&
         angles.dtype == steps.dtype && state.dtype == INT64 && ends.dtype == INT64;
  for (int i = 0; fits && i < 3; i++)
    fits = angles.shape[i] == steps.shape[i] && (i == 1 || state.shape[i] == steps.shape[i]);
  fits = fits && ends.shape[0] == state.shape[1] + 1 && state.writeable && angles.writeable;
  const I* places = (const I*)ends.data;
  for (I i = 0; fits && i < state.shape[1]; i++)
    fits = 0 <= places[i] && places[i] <= places[i + 1] && places[i + 1] <= steps.shape[1];
  if (!fits) return fail("steps do not fit their states"), nullptr;
  const I inner = steps.shape[2], tokens = steps.shape[1] * inner * SIZES[steps.dtype];
  bool inside = true;
  PyThreadState* thread = PyEval_SaveThread();
  for (I o = 0; o < steps.shape[0]; o++)
    for (I i = 0; i < state.shape[1]; i++) {
      const Sums job = {steps.dtype, inner, steps.data + o * tokens, angles.data + o * tokens,
                        (I*)state.data + (o * state.shape[1] + i) * inner};
      inside &= find_kernels()->sum(&job, places[i], places[i + 1]);
    }
  PyEval_RestoreThread(thread);
  return PyBool_FromLong(inside);
}
