// Angles of arrays of frequencies, and of steps: arguments as users write them, for exact.h.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"

namespace {

const double LARGEST = 0x1p20;  // of frequencies

// Whether the moduli of contiguous numbers are below a limit.
bool are_below(const Array& x, double limit) {
  const I count = count_elements(x);
  bool fit = true;
  for (I i = 0; i < count; i++) {
    const char* p = x.data + i * SIZES[x.dtype];
    fit &= fabs(x.dtype == FLOAT32 ? *(const float*)p : (double)read_integer(p, x.dtype)) < limit;
  }
  return fit;
}

// Sets the shape of cos and sin, (batch..., tokens, r) or (batch..., tokens, heads, r). Returns
// false where positions and frequencies do not fit an array of these axes.
bool place_rows(const Array& p, const Array& f, const Array& like, const Axes& axes, Array& table) {
  const bool lead = f.ndim == 3, by_head = f.ndim > 1 && f.shape[f.ndim - 2] != 1;
  if (lead && (p.ndim < 1 || p.shape[0] != f.shape[0])) return false;
  const int rows = p.ndim - lead;
  if (rows > axes.count || (by_head && axes.heads < 0)) return false;
  // A single number for several tokens is ambiguous.
  const bool single = rows == 0 || (rows == 1 && p.shape[p.ndim - 1] == 1);
  if (single && like.shape[axes.batch_tokens[axes.count - 1]] != 1) return false;
  const int shown = by_head ? axes.count : rows ? rows : 1;
  table.ndim = 0;
  for (int i = shown; i > 0; i--) table.shape[table.ndim++] = i > rows ? 1 : p.shape[p.ndim - i];
  if (by_head) table.shape[table.ndim++] = f.shape[f.ndim - 2];
  table.shape[table.ndim++] = 2 * f.shape[f.ndim - 1];
  return true;
}

}  // namespace

// multiply_angles(positions, frequencies, like, axes): cos and sin of sums of products, side by
// side in an array of the library of like, (batch..., tokens, r) or with heads before r; or None.
PyObject* multiply_angles(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return fail("multiply_angles takes four arguments"), nullptr;
  Entry e;
  e.how = 0;
  Array like, p, f, table;
  Axes axes;
  if (!takes(e, args[2]) || !read_fields(args[2], e.library, like)) return decline();
  if (!is_float(like.dtype) || like.dtype == FLOAT64) Py_RETURN_NONE;
  if (find_library(args[1]) != e.library || !read(e, args[1], e.library, f)) return decline();
  if (f.dtype != FLOAT32 || f.ndim < 1 || f.ndim > 3 || is_empty(f)) Py_RETURN_NONE;
  if (!read_positions(e, args[0], 0, p) || !name_axes(args[3], like.ndim, axes)) return decline();
  if (p.dtype != FLOAT32 && p.dtype != INT32 && p.dtype != INT64) Py_RETURN_NONE;
  if (!make_contiguous(p, e.buffers[1]) || !make_contiguous(f, e.buffers[2]) ||
      !are_below(f, LARGEST) || !are_below(p, (double)LIMIT) ||
      !place_rows(p, f, like, axes, table))
    Py_RETURN_NONE;
  const I components = f.ndim == 3 ? f.shape[0] : 1, width = f.shape[f.ndim - 1];
  const I n = count_elements(f) / components;
  if (!(e.buffers[3] = (char*)malloc(n * (10 * components + 2) * sizeof(float))))
    return PyErr_NoMemory();
  Ref made(allocate(e, table.shape, table.ndim, FLOAT32, table));
  if (!made.object) return decline();
  const Products job = {p.dtype,
                        components,
                        count_elements(p) / components,
                        n,
                        width,
                        p.data,
                        (const float*)f.data,
                        (float*)table.data,
                        (float*)e.buffers[3]};
  PyThreadState* state = PyEval_SaveThread();
  find_kernels()->multiply(&job);
  PyEval_RestoreThread(state);
  return Py_NewRef(made.object);
}

// accumulate_angles(steps, axis, start, ends, with_state): angles of sums of steps along an axis,
// and their states if those are asked for; or None. ends: None, or cumulative lengths of sequences.
PyObject* accumulate_angles(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5) return fail("accumulate_angles takes five arguments"), nullptr;
  Entry e;
  e.how = 0;
  Array steps, start, ends, angles, sums;
  if (!takes(e, args[0]) || !read(e, args[0], e.library, steps)) return decline();
  if (!PyLong_CheckExact(args[1])) Py_RETURN_NONE;
  long long axis = PyLong_AsLongLong(args[1]);
  if (PyErr_Occurred()) return PyErr_Clear(), Py_NewRef(Py_None);
  axis += axis < 0 ? steps.ndim : 0;
  const bool fits = steps.dtype == FLOAT32 || steps.dtype == FLOAT64;
  if (!fits || is_empty(steps) || axis < 0 || axis >= steps.ndim) Py_RETURN_NONE;
  const bool is_whole = is_contiguous(steps);
  if (!make_contiguous(steps, e.buffers[1])) return decline();
  const I tokens = steps.shape[axis];
  // Ends are copied, as other threads may write to them meanwhile.
  I whole[] = {0, tokens}, sequences = 1, *places = whole;
  if (args[3] != Py_None) {
    if (!read_positions(e, args[3], 0, ends)) return decline();
    if (is_float(ends.dtype) || ends.ndim != 1 || ends.shape[0] < 2) Py_RETURN_NONE;
    sequences = ends.shape[0] - 1;
    if (!(e.buffers[2] = (char*)malloc((sequences + 1) * sizeof(I)))) return PyErr_NoMemory();
    places = (I*)e.buffers[2];
    for (I i = 0; i <= sequences; i++)
      places[i] = read_integer(ends.data + i * ends.strides[0], ends.dtype);
  }
  bool ordered = places[0] == 0 && places[sequences] == tokens;
  for (I i = 0; i < sequences; i++) ordered &= places[i] <= places[i + 1];
  if (!ordered) Py_RETURN_NONE;
  I shape[MAX_DIMS], outer = 1, inner = 1;
  for (int i = 0; i < steps.ndim; i++) {
    shape[i] = i == axis ? sequences : steps.shape[i];
    (i < axis ? outer : inner) *= i == axis ? 1 : steps.shape[i];
  }
  const I total = outer * sequences * inner;
  if (args[2] != Py_None) {
    if (find_library(args[2]) != e.library || !read(e, args[2], e.library, start)) return decline();
    if (start.dtype != INT64 || start.ndim != steps.ndim ||
        memcmp(start.shape, shape, steps.ndim * sizeof(I)) || !is_contiguous(start))
      Py_RETURN_NONE;
  }
  Ref made, state;
  if (is_whole) {
    made.object = PyObject_CallFunctionObjArgs(functions[e.library][EMPTY_LIKE], args[0], nullptr);
    if (made.object && !read_fields(made, e.library, angles)) return decline();
  } else {
    made.object = allocate(e, steps.shape, steps.ndim, steps.dtype, angles);
  }
  if (!made.object) return decline();
  const bool with_state = args[4] == Py_True;
  if (with_state) {
    state.object = allocate(e, shape, steps.ndim, INT64, sums);
    if (!state.object) return decline();
  } else if (!(e.buffers[3] = sums.data = (char*)malloc(total * sizeof(I)))) {
    return PyErr_NoMemory();
  }
  if (args[2] != Py_None) memcpy(sums.data, start.data, total * sizeof(I));
  else memset(sums.data, 0, total * sizeof(I));
  bool inside = true;
  const I bytes = tokens * inner * SIZES[steps.dtype];
  PyThreadState* thread = PyEval_SaveThread();
  for (I o = 0; o < outer; o++)
    for (I i = 0; i < sequences; i++) {
      const Sums job = {steps.dtype, inner, steps.data + o * bytes, angles.data + o * bytes,
                        (I*)sums.data + (o * sequences + i) * inner};
      inside &= find_kernels()->sum(&job, places[i], places[i + 1]);
    }
  PyEval_RestoreThread(thread);
  if (!inside) Py_RETURN_NONE;
  return with_state ? PyTuple_Pack(2, made.object, state.object) : Py_NewRef(made.object);
}
