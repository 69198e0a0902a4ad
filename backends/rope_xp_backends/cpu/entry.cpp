// The entry: a call as users write it, checked and run at once. Whatever is unusual, or may be
// wrong, is left to the slow path in Python, before anything is written: these functions return
// None.
#include "entry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace {

// What a call asks for, as rope_xp/_dispatch/how.py has it.
enum { ONE = 1, INVERSE = 2, TRANSPOSED = 4, RECORDED = 8, GIVEN_COLUMNS = 16, CHECK_COLUMNS = 32 };

PyObject *norm_type, *choice, *find_tables;

// Names of attributes, and of the path, by their places.
const int HANDLES = 0, PATH_NAME = 1, LEVEL_NAME = 2, VERSION = 3, REQUIRES_GRAD = 4, Q_WEIGHT = 5,
          K_WEIGHT = 6, EPS = 7, OFFSET = 8, ROUND_BETWEEN = 9, NATIVE = 10, NAMES = 11;
const char* const NAME_TEXTS[NAMES] = {
    "_handles", "name", "_current_level", "_version",      "requires_grad", "q_weight",
    "k_weight", "eps",  "offset",         "round_between", "native"};
PyObject* names[NAMES];

const I HUGE_BYTES = I(1) << 22;          // of results that torch would not map in huge pages
const Py_ssize_t MOST_NUMBERS = 1 << 20;  // of Python; numpy reads more in less memory
const I MOST_COPIED = I(1) << 16;         // elements
const double MIN_EPS = 0x1p-126;

// Whether an object, whose reference goes, is true. An error counts as `otherwise` and goes too,
// but for interrupts, which `decline` hands on.
bool is_true(PyObject* object, bool otherwise) {
  if (object == Py_True || object == Py_False) {
    Py_DECREF(object);
    return object == Py_True;
  }
  const int truth = object ? PyObject_IsTrue(object) : -1;
  Py_XDECREF(object);
  if (truth < 0 && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return truth < 0 ? otherwise : truth;
}

PyObject* ask(Library library, int function) {
  return PyObject_CallNoArgs(functions[library][function]);
}
bool asks_true(PyObject* x, int function) {
  return is_true(PyObject_CallFunctionObjArgs(functions[TORCH][function], x, nullptr), true);
}

}  // namespace

bool is_observed() {
  if (is_true(ask(TORCH, FUNCTION_MODES), true)) return is_true(ask(TORCH, IS_OBSERVED), true);
  Ref level(PyObject_GetAttr(functions[TORCH][FORWARD_MODE], names[LEVEL_NAME]));
  const long number = level.object ? PyLong_AsLong(level) : 0;
  if (PyErr_Occurred()) PyErr_Clear();
  return number >= 0 || is_true(ask(TORCH, IS_TRACING), true) ||
         is_true(ask(TORCH, TRANSFORMS), true) || is_true(ask(TORCH, DISPATCH_MODES), true) ||
         is_true(ask(TORCH, IS_PROFILED), true);
}

bool may_record() { return is_true(ask(TORCH, IS_GRAD_ENABLED), true); }

bool counts_versions(Library library) {
  return library == TORCH && !is_true(ask(TORCH, IS_INFERENCE_ENABLED), false);
}

bool has_version(PyObject* tensor) {
  Ref version(PyObject_GetAttr(tensor, names[VERSION]));
  if (!version.object) PyErr_Clear();
  return version.object;
}

namespace {

bool read_float(PyObject* object, double& to) {
  if (Py_TYPE(object) != &PyFloat_Type) return false;
  to = PyFloat_AsDouble(object);
  return true;
}

struct Variant {  // of a rope, for heads of some length
  I head_dim;
  bool inverse, wide, interleaved_in, interleaved_out;
  I offset, pairs;
  Tables* tables;
};
const int MAX_VARIANTS = 8;
struct Handles {
  int count;
  Variant variants[MAX_VARIANTS];
};
const char HANDLES_NAME[] = "rope_xp.handles";

void free_handles(PyObject* capsule) {
  Handles* handles = (Handles*)PyCapsule_GetPointer(capsule, HANDLES_NAME);
  for (int i = 0; i < handles->count; i++) drop(handles->variants[i].tables);
  free(handles);
}

// --- what a call is given ------------------------------------------------------------------------

}  // namespace

bool read(const Entry& e, PyObject* object, Library library, Array& x, Device* device) {
  if (library == OTHER || !read_fields(object, library, x, device) || !(x.data || is_empty(x)))
    return false;
  if (library == NUMPY) return true;
  if (asks_true(object, IS_NEGATED)) return false;
  return !e.records || !is_true(PyObject_GetAttr(object, names[REQUIRES_GRAD]), true);
}

bool name_axes(PyObject* given, int ndim, Axes& axes) {
  axes.count = 0, axes.heads = -1;
  if (ndim < 2 || ndim > 12) return false;
  if (given == Py_None) {
    for (int i = 0; i < ndim - 1 - (ndim > 2); i++) axes.batch_tokens[axes.count++] = i;
    if (ndim > 2) axes.heads = ndim - 2;
    return true;
  }
  Py_ssize_t size;
  const char* letters = PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &size) : nullptr;
  if (!letters || size != ndim || letters[ndim - 1] != 'd') return false;
  uint32_t found = 0;
  int tokens = -1;
  for (int i = 0; i < ndim; i++) {
    const char c = letters[i];
    if (c < 'a' || c > 'z' || found >> (c - 'a') & 1) return false;
    found |= 1u << (c - 'a');
    if (c == 's') tokens = i;
    else if (c == 'h') axes.heads = i;
    else if (c != 'd') axes.batch_tokens[axes.count++] = i;
  }
  axes.batch_tokens[axes.count++] = tokens;
  return tokens >= 0;
}

namespace {

// Whether q and k differ only where they may: in dtype too, if they share their tables.
bool is_pair(const Array& q, const Array& k, const Axes& axes, bool own_tokens) {
  if (k.ndim != q.ndim || (k.dtype == FLOAT64) != (q.dtype == FLOAT64)) return false;
  for (int i = 0; i < q.ndim; i++)
    if (q.shape[i] != k.shape[i] && i != axes.heads &&
        !(own_tokens && i == axes.batch_tokens[axes.count - 1]))
      return false;
  return true;
}

}  // namespace

bool takes(Entry& e, PyObject* x) {
  e.library = find_library(x), e.arrays = e.how & ONE ? 1 : 2, e.angles = 0, e.calls = 1;
  e.records = e.to_slots = false;
  if (e.library == OTHER || !functions[e.library][EMPTY_LIKE]) return false;
  if (choice) {
    Ref name(PyObject_GetAttr(choice, names[PATH_NAME]));
    if (!name.object ||
        (name != Py_None && PyObject_RichCompareBool(name, names[NATIVE], Py_EQ) != 1))
      return false;
  }
  if (e.library == TORCH) {
    if (is_observed()) return false;
    e.records = !(e.how & RECORDED) && may_record();
  }
  return true;
}

bool make_contiguous(Array& x, char*& buffer) {
  if (is_contiguous(x)) return true;
  const int last = x.ndim - 1;
  const I size = SIZES[x.dtype], length = x.shape[last], count = count_elements(x);
  if (count > MOST_COPIED || !(buffer = (char*)malloc(count * size))) return false;
  char* to = buffer;
  for (I row = 0; row < count / length; row++) {
    const char* from = find_element(x, last, row);
    for (I i = 0; i < length; i++, to += size) memcpy(to, from + i * x.strides[last], size);
  }
  set_contiguous(x, buffer);
  x.extent = {0, count * size};
  return true;
}

namespace {

// Copies arrays whose components of heads do not lie side by side.
bool copy_stepped(Entry& e) {
  for (int i = 0; i < e.arrays; i++) {
    Array& x = e.x[i];
    const bool fits = x.strides[x.ndim - 1] == SIZES[x.dtype] || x.shape[x.ndim - 1] == 1;
    if (!fits && !e.in_place[i] && !make_contiguous(x, e.buffers[3 + i])) return false;
  }
  return true;
}

// Reads q and k, and the results that are given, of which the last is a cache where there are
// slots.
bool read_arrays(Entry& e, PyObject* q, PyObject* k, PyObject* axis_names, PyObject*& out,
                 PyObject* slots, bool own_tokens) {
  if (!takes(e, q)) return false;
  e.objects[0] = q, e.objects[1] = k;
  for (int i = 0; i < e.arrays; i++)
    if (find_library(e.objects[i]) != e.library || !read(e, e.objects[i], e.library, e.x[i]) ||
        !is_float(e.x[i].dtype) || is_empty(e.x[i]))
      return false;
  Call& call = e.call[0];
  memset(&call.job, 0, sizeof(Job));
  call.x = e.x, call.y = e.y, call.arrays = e.arrays;
  Axes& axes = call.axes;
  if (!name_axes(axis_names, e.x[0].ndim, axes)) return false;
  if (e.arrays > 1 && !is_pair(e.x[0], e.x[1], axes, own_tokens)) return false;
  e.outs[0] = e.outs[1] = nullptr, e.in_place[0] = e.in_place[1] = false;
  e.to_slots = slots != Py_None;
  if (out == Py_None) return !e.to_slots && copy_stepped(e);
  if (e.arrays > 1 && PyList_CheckExact(out)) {
    out = e.given.object = PySequence_Tuple(out);
    if (!out) return false;
  }
  if (e.arrays > 1 && (!PyTuple_CheckExact(out) || PyTuple_Size(out) != 2)) return false;
  if (e.to_slots && e.arrays < 2) return false;
  const bool versions = counts_versions(e.library);
  for (int i = 0; i < e.arrays; i++) {
    PyObject* y = e.arrays > 1 ? PyTuple_GetItem(out, i) : out;
    const bool is_cache = e.to_slots && i == 1;
    if (e.to_slots && i == 0 && y == Py_None) continue;
    e.outs[i] = y;
    e.in_place[i] = y == e.objects[i] && !is_cache;
    if (e.in_place[i]) e.y[i] = e.x[i];
    else if (find_library(y) != e.library || !read(e, y, e.library, e.y[i])) return false;
    const Array &from = e.x[i], &to = e.y[i];
    if (!to.writeable || to.dtype != from.dtype || may_overlap_itself(to)) return false;
    if (!is_cache &&
        (to.ndim != from.ndim || memcmp(to.shape, from.shape, to.ndim * sizeof(I)) != 0))
      return false;
    if (versions && !has_version(y)) return false;
  }
  return copy_stepped(e);
}

// --- positions -----------------------------------------------------------------------------------

bool is_sequence(PyObject* x) {
  return PyList_CheckExact(x) || PyTuple_CheckExact(x) || Py_TYPE(x) == &PyRange_Type;
}

// Whole numbers of Python: an int, or a list, tuple or range of them, or of such rows.
bool read_numbers(Entry& e, PyObject* numbers, int place, Array& x) {
  x.dtype = INT64, x.ndim = 1, x.shape[0] = 1, x.strides[0] = 8;
  x.data = (char*)e.few[place];
  if (PyLong_CheckExact(numbers)) {
    e.few[place][0] = PyLong_AsLongLong(numbers);
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    return true;
  }
  if (!is_sequence(numbers) || PySequence_Size(numbers) > MOST_NUMBERS) return false;
  Ref items(PySequence_Tuple(numbers));
  if (!items.object) return PyErr_Clear(), false;
  const Py_ssize_t length = PyTuple_Size(items);
  PyObject* first = length ? PyTuple_GetItem(items, 0) : nullptr;
  const bool nested = first && is_sequence(first);
  const Py_ssize_t rows = nested ? length : 1, count = nested ? PySequence_Size(first) : length;
  if (!count || count > MOST_NUMBERS / rows) return false;
  const bool fits = rows * count * sizeof(I) <= sizeof e.few[place];
  if (!fits && !(e.buffers[place] = (char*)malloc(rows * count * sizeof(I)))) return false;
  I* to = fits ? e.few[place] : (I*)e.buffers[place];
  x.ndim = 1 + nested, x.shape[0] = rows, x.shape[nested] = count;
  set_contiguous(x, (char*)to);
  for (Py_ssize_t i = 0; i < rows; i++) {
    PyObject* row = nested ? PyTuple_GetItem(items, i) : numbers;
    if (nested && (!is_sequence(row) || PySequence_Size(row) != count)) return false;
    Ref inner(nested ? PySequence_Tuple(row) : Py_NewRef(items));
    if (!inner.object) return PyErr_Clear(), false;
    for (Py_ssize_t j = 0; j < count; j++, to++) {
      PyObject* item = PyTuple_GetItem(inner, j);
      if (!PyLong_CheckExact(item)) return false;
      *to = PyLong_AsLongLong(item);
      if (*to == -1 && PyErr_Occurred()) return PyErr_Clear(), false;
    }
  }
  return true;
}

// Splits floats into whole numbers and fractions in the dtype of angles, in memory of their own.
// Without any fraction they count as whole numbers.
bool split_fractions(Call& call, char*& buffer, bool wide) {
  const Array floats = call.angle[0];
  Array &whole = call.angle[0], &part = call.angle[1];
  const I n = count_elements(floats), size = wide ? 8 : 4;
  if (!(buffer = (char*)malloc(n * (sizeof(I) + size)))) return false;
  whole.dtype = INT64, set_contiguous(whole, buffer);
  part = whole, part.dtype = wide ? FLOAT64 : FLOAT32;
  set_contiguous(part, buffer + n * sizeof(I));
  bool any = false;
  for (I i = 0; i < n; i++) {
    const char* from = find_element(floats, floats.ndim, i);
    const double value = floats.dtype == FLOAT64 ? *(const double*)from : *(const float*)from;
    const double before = trunc(value);  // so that the rest is exact
    if (!(fabs(before) < (double)LIMIT)) return false;
    ((I*)whole.data)[i] = (I)before;
    if (wide) ((double*)part.data)[i] = value - before;
    else ((float*)part.data)[i] = (float)(value - before);
    any |= value != before;
  }
  call.angles = any ? 2 : 1;
  return true;
}

}  // namespace

bool read_positions(Entry& e, PyObject* positions, int place, Array& x) {
  const Library library = find_library(positions);
  if (library == OTHER) return read_numbers(e, positions, place, x);
  if (library == TORCH && e.library != TORCH) return false;
  if (!read(e, positions, library, x) || is_empty(x)) return false;
  e.angle[e.angles++] = x;
  return x.dtype != FLOAT16 && x.dtype != BFLOAT16;
}

namespace {

// Whether any of some integers is out of range.
bool exceeds_limit(const Array& x) {
  const int last = x.ndim - 1;
  const I length = x.ndim ? x.shape[last] : 1, step = x.ndim ? x.strides[last] : 0;
  const I rows = count_elements(x) / length;
  uint64_t found = 0;
  for (I row = 0; row < rows; row++) {
    const char* p = find_element(x, last, row);
    for (I i = 0; i < length; i++, p += step) {
      const I position = read_integer(p, x.dtype);
      // The modulus of -2**63 is 2**63, and no smaller number is out of range.
      found |= (position < 0 ? -(uint64_t)position : (uint64_t)position) >= (uint64_t)LIMIT;
    }
  }
  return found;
}

// Fits positions, whose components are their leading axis, to a call. Those of floats are split.
bool fit_positions(Call& call, char*& buffer, const Variant& v) {
  Array& x = call.angle[0];
  const Array& first = call.x[0];
  const I components = v.tables->components;
  const int rows = x.ndim - (components > 0), count = call.axes.count;
  if (rows < 0 || rows > count || (components > 0 && x.shape[0] != components)) return false;
  // A single number for several tokens is ambiguous.
  const bool single = rows == 0 || (rows == 1 && x.shape[x.ndim - 1] == 1);
  if (single && first.shape[call.axes.batch_tokens[count - 1]] != 1) return false;
  call.angles = 1;
  if (!is_float(x.dtype)) return !exceeds_limit(x);
  return split_fractions(call, buffer, v.wide) && (call.angles < 2 || v.tables->takes_fractions);
}

// --- tables --------------------------------------------------------------------------------------

// Finds tables of a rope for a call of so many tokens, and a reference to what they lie in. Small
// ones do until many rows were computed from them. Returns false, perhaps with an error, where
// there are none.
bool find_variant(PyObject* rope, I rows, Variant& wanted, Ref& owner) {
  Ref held(PyObject_GetAttr(rope, names[HANDLES]));
  Handles* handles = nullptr;
  if (held.object) handles = (Handles*)PyCapsule_GetPointer(held, HANDLES_NAME);
  if (!handles) PyErr_Clear();
  const Variant* found = nullptr;
  for (int i = 0; handles && i < handles->count; i++) {
    const Variant& v = handles->variants[i];
    if (v.head_dim == wanted.head_dim && v.inverse == wanted.inverse && v.wide == wanted.wide &&
        v.tables->owner && (!found || v.tables->low))
      found = &v;
  }
  const I most = find_threshold(TABLE_ROWS);
  bool all = wanted.wide || rows >= most;
  if (found && !found->tables->low) {
    found->tables->rows += rows;
    all = found->tables->rows >= most;
    if (all) found->tables->rows = 0;  // if those that follow are evicted soon
  }
  if (found && (found->tables->low || !all)) {
    wanted = *found;
    owner.object = Py_NewRef(wanted.tables->owner);
    return true;
  }
  Ref made(PyObject_CallFunction(find_tables, "OLiii", rope, (long long)wanted.head_dim,
                                 wanted.inverse, wanted.wide, all));
  if (!made.object || made == Py_None) return false;
  PyObject* capsule;
  int in, out;
  long long offset, pairs;
  if (!PyArg_ParseTuple(made, "OppLL", &capsule, &in, &out, &offset, &pairs)) return false;
  wanted.interleaved_in = in, wanted.interleaved_out = out;
  wanted.offset = offset, wanted.pairs = pairs, wanted.tables = get_tables(capsule);
  if (!wanted.tables || !wanted.tables->owner) return false;
  owner.object = Py_NewRef(wanted.tables->owner);
  // Other threads may read the old handles, which do not change.
  Handles* added = (Handles*)malloc(sizeof(Handles));
  if (!added) return true;
  added->count = 0;
  for (int i = 0; handles && i < handles->count && added->count < MAX_VARIANTS - 1; i++)
    if (handles->variants[i].tables->owner) added->variants[added->count++] = handles->variants[i];
  added->variants[added->count++] = wanted;
  for (int i = 0; i < added->count; i++) added->variants[i].tables->keepers++;
  Ref replaced(PyCapsule_New(added, HANDLES_NAME, free_handles));
  if (!replaced.object || PyObject_GenericSetAttr(rope, names[HANDLES], replaced)) return false;
  return true;
}

void set_layout(Job& job, bool in, bool out, int how) {
  const bool swapped = how & INVERSE ? !(how & TRANSPOSED) : how & TRANSPOSED;
  job.inverse = swapped;
  job.interleaved_in = swapped ? out : in, job.interleaved_out = swapped ? in : out;
}

// Whether the last row of a table looks as if it held each angle twice.
bool may_repeat_columns(const Array& x) {
  const I columns = x.shape[x.ndim - 1], step = x.strides[x.ndim - 1], size = SIZES[x.dtype];
  const char* row = find_element(x, x.ndim - 1, count_elements(x) / columns - 1);
  return columns % 2 == 0 &&
         (memcmp(row, row + step, size) == 0 || memcmp(row, row + columns / 2 * step, size) == 0);
}

// --- norm ----------------------------------------------------------------------------------------

// Reads a QKNorm, or a weight and eps of one array. `weights` hold them while the call runs.
bool read_norm(Entry& e, PyObject* norm, Call& call, Ref weights[2]) {
  Job& job = call.job;
  call.weights = 0;
  if (norm == Py_None) return true;
  job.normalized = true, job.weight_offset = 0;
  if (PyTuple_CheckExact(norm) && e.arrays == 1 && PyTuple_Size(norm) == 2) {
    weights[0].object = Py_NewRef(PyTuple_GetItem(norm, 0));
    if (!read_float(PyTuple_GetItem(norm, 1), job.eps)) return false;
  } else if ((PyObject*)Py_TYPE(norm) == norm_type) {
    Ref eps(PyObject_GetAttr(norm, names[EPS])), offset(PyObject_GetAttr(norm, names[OFFSET]));
    Ref between(PyObject_GetAttr(norm, names[ROUND_BETWEEN]));
    weights[0].object = PyObject_GetAttr(norm, names[Q_WEIGHT]);
    if (e.arrays > 1) weights[1].object = PyObject_GetAttr(norm, names[K_WEIGHT]);
    if (!eps.object || !offset.object || !weights[0].object || PyErr_Occurred()) return false;
    if (between != Py_False || !read_float(eps, job.eps) || !read_float(offset, job.weight_offset))
      return false;
  } else {
    return false;
  }
  if (!(job.eps >= MIN_EPS && job.eps <= 0x1.fffffffffffffp1023)) return false;
  int given = 0;
  for (int i = 0; i < e.arrays; i++) {
    call.weight[i].ndim = 0;
    if (weights[i] == Py_None) continue;
    if (find_library(weights[i]) != e.library || !read(e, weights[i], e.library, call.weight[i]))
      return false;
    given++;
  }
  // Kernels of GPUs take weights of one dtype for all arrays, or none: so do these.
  if (given % e.arrays) return false;
  const Array &first = call.weight[0], &last = call.weight[e.arrays - 1];
  if (given && (first.dtype != last.dtype || first.ndim != 1 || last.ndim != 1 ||
                first.shape[0] != last.shape[0]))
    return false;
  const I head_dim = e.x[0].shape[e.x[0].ndim - 1];
  job.normalizes_rest = !given || first.shape[0] == head_dim;
  call.weights = e.arrays;
  return true;
}

// --- results -------------------------------------------------------------------------------------

// Returns a new array like one, with memory that is written from end to end.
PyObject* allocate(const Entry& e, int i) {
  const bool huge =
      e.library == TORCH && count_elements(e.x[i]) * SIZES[e.x[i].dtype] >= HUGE_BYTES;
  PyObject* function = functions[e.library][huge ? ALLOCATE_LARGE : EMPTY_LIKE];
  return PyObject_CallFunctionObjArgs(function, e.objects[i], nullptr);
}

// Whether no result overlaps anything else that is read or written. It may be in place.
bool can_write(const Entry& e) {
  const Array* others[6];
  int count = 0;
  for (int i = 0; i < e.angles; i++) others[count++] = &e.angle[i];
  for (int c = 0; c < e.calls; c++)
    for (int i = 0; i < e.call[c].weights; i++)
      if (e.call[c].weight[i].ndim) others[count++] = &e.call[c].weight[i];
  if (e.arrays > 1 && !are_disjoint(e.y[1], e.y[0])) return false;
  for (int k = 0; k < e.arrays; k++) {
    for (int j = 0; j < e.arrays; j++)
      if (!(j == k && e.in_place[k]) && !are_disjoint(e.y[k], e.x[j])) return false;
    for (int j = 0; j < count; j++)
      if (!are_disjoint(e.y[k], *others[j])) return false;
  }
  return true;
}

// Tells autograd of results that were written.
bool mark_written(const Entry& e, PyObject* out) {
  const bool all = e.arrays > 1 && e.outs[0];
  Ref outs(all ? Py_NewRef(out) : PyTuple_Pack(1, e.outs[e.arrays - 1]));
  if (!outs.object) return false;
  Ref done(
      PyObject_CallFunctionObjArgs(functions[TORCH][INCREMENT_VERSIONS], outs.object, nullptr));
  return done.object != nullptr;
}

}  // namespace

PyObject* decline() {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) return nullptr;
    PyErr_Clear();
  }
  Py_RETURN_NONE;
}

PyObject* allocate(const Entry& e, const I* shape, int ndim, Dtype dtype, Array& x) {
  Ref lengths(PyList_New(0));
  for (int i = 0; i < ndim; i++) {
    Ref length(PyLong_FromLongLong(shape[i]));
    if (!lengths.object || !length.object || PyList_Append(lengths, length)) return nullptr;
  }
  const int kind = dtype == INT64 ? 2 : dtype == FLOAT64;
  PyObject* made = PyObject_CallFunction(functions[e.library][EMPTY], "Oi", lengths.object, kind);
  if (made && find_library(made) == e.library && read_fields(made, e.library, x)) return made;
  if (made && !PyErr_Occurred()) fail("the library made no array that can be read");
  Py_XDECREF(made);
  return nullptr;
}

namespace {

// Runs calls whose sources of angles are read. Each has a place for tables, and `columns` as
// read_angles takes them.
PyObject* run_calls(Entry& e, PyObject* out, PyObject* slots, PyObject* cache_axes,
                    const Variant* variant, int columns) {
  Ref made[2];
  for (int i = 0; i < e.arrays; i++) {
    if (e.outs[i]) continue;
    made[i].object = allocate(e, i);
    if (!made[i].object) return nullptr;
    if (!read_fields(made[i], e.library, e.y[i])) return decline();
  }
  Call& last = e.call[e.calls - 1];
  if (e.to_slots) {
    if (PyLong_CheckExact(slots) || !read_positions(e, slots, 2, last.slots)) return decline();
  } else if (cache_axes != Py_None) {
    Py_RETURN_NONE;
  }
  if (out != Py_None && !can_write(e)) Py_RETURN_NONE;
  if (e.to_slots && !place_slots(last, cache_axes)) return decline();
  for (int i = 0; i < e.calls; i++) {
    Call& call = e.call[i];
    if (!place_operands(call) || !read_angles(call, columns)) return decline();
    if (variant && !place_tables(call, variant->tables, columns >= 0)) return decline();
    collapse(call);
  }
  for (int i = 0; i < e.calls; i++)
    if (!run(e.call[i], e.library)) return nullptr;
  if (out != Py_None) {
    if (e.library == TORCH && !mark_written(e, out)) return nullptr;
    if (!made[0].object) return Py_NewRef(out);
    return PyTuple_Pack(2, made[0].object, e.outs[1]);
  }
  if (e.arrays > 1) return PyTuple_Pack(2, made[0].object, made[1].object);
  return Py_NewRef(made[0].object);
}

}  // namespace

// rotate_by_rope(rope, q, k, positions, k_positions, axes, out, norm, slots, cache_axes, how):
// results, or None.
//
// slots: None, or those of a cache with cache_axes, which is then the result of k. how: a sum of
// ONE (q is an array alone, and k is not read), INVERSE, TRANSPOSED and RECORDED.
PyObject* rotate_by_rope(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 11) return fail("rotate_by_rope takes eleven arguments"), nullptr;
  PyObject *rope = args[0], *positions = args[3], *k_positions = args[4], *out = args[6];
  PyObject* slots = args[8];
  Entry e;
  e.how = (int)PyLong_AsLong(args[10]);
  if (PyErr_Occurred()) return nullptr;
  const bool apart = k_positions != Py_None;
  if (!read_arrays(e, args[1], args[2], args[5], out, slots, apart)) return decline();
  if (apart && e.arrays < 2) Py_RETURN_NONE;
  e.calls = apart || (e.arrays > 1 && e.x[0].dtype != e.x[1].dtype) ? 2 : 1;
  Variant v;
  Ref owner, weights[2];
  v.head_dim = e.x[0].shape[e.x[0].ndim - 1];
  v.inverse = e.how & INVERSE, v.wide = e.x[0].dtype == FLOAT64;
  I rows = 1;
  for (int i = 0; i < e.call[0].axes.count; i++)
    rows *= e.x[0].shape[e.call[0].axes.batch_tokens[i]];
  if (!read_norm(e, args[7], e.call[0], weights)) return decline();
  if (!find_variant(rope, rows, v, owner)) return decline();
  if (e.calls > 1) {
    e.call[0].arrays = 1, e.call[0].weights = e.call[0].weights > 0;
    e.call[1] = e.call[0];
    e.call[1].x++, e.call[1].y++, e.call[1].weight[0] = e.call[0].weight[1];
  }
  for (int i = 0; i < e.calls; i++) {
    Call& call = e.call[i];
    set_layout(call.job, v.interleaved_in, v.interleaved_out, e.how);
    call.job.lookup = true, call.job.before = v.offset, call.job.pairs = v.pairs;
    PyObject* given = i && apart ? k_positions : positions;
    call.angles = 0;
    if (given == Py_None) {
      if (rows > LIMIT) Py_RETURN_NONE;
      continue;
    }
    if (!read_positions(e, given, i, call.angle[0]) || !fit_positions(call, e.buffers[i], v))
      return decline();
  }
  return run_calls(e, out, slots, args[9], &v, v.tables->components ? 0 : -1);
}

// rotate_by_tables(layout, rotary_dim, rotary_offset, columns, q, k, cos, sin, axes, out, norm,
// slots, cache_axes, how): results, or None.
//
// rotary_dim: None for all of head_dim, 0 for as many components as there are columns. columns: 0
// for one a pair; 1 where the second half repeats the first, 2 where neighbours are equal. sin:
// None where it lies behind cos, as look_up_angles returns both.
PyObject* rotate_by_tables(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 14) return fail("rotate_by_tables takes fourteen arguments"), nullptr;
  PyObject *layout = args[0], *out = args[9], *slots = args[11];
  Entry e;
  e.how = (int)PyLong_AsLong(args[13]);
  const long form = PyLong_AsLong(args[3]);
  if (PyErr_Occurred()) return nullptr;
  if (!PyUnicode_Check(layout) || !PyLong_CheckExact(args[2])) Py_RETURN_NONE;
  if (!read_arrays(e, args[4], args[5], args[8], out, slots, false)) return decline();
  if (e.arrays > 1 && e.x[0].dtype != e.x[1].dtype) Py_RETURN_NONE;
  Call& call = e.call[0];
  Job& job = call.job;
  Ref weights[2];
  if (!read_norm(e, args[10], call, weights)) return decline();
  const bool joined = args[7] == Py_None;
  for (int i = 0; i < 2 - joined; i++) {
    PyObject* table = args[6 + i];
    const Library library = find_library(table);
    if ((library != e.library && library != NUMPY) || !read(e, table, library, call.angle[i]))
      return decline();
    e.angle[e.angles++] = call.angle[i];
  }
  call.angles = 2;
  if (joined && call.angle[0].ndim) {
    Array &left = call.angle[0], &right = call.angle[1];
    const int last = left.ndim - 1;
    left.shape[last] /= 2;
    right = left, right.data += left.shape[last] * left.strides[last];
  }
  const Array &cos = call.angle[0], &sin = call.angle[1];
  if (cos.ndim < 2 || sin.ndim != cos.ndim || is_empty(cos) ||
      memcmp(cos.shape, sin.shape, cos.ndim * sizeof(I)) != 0)
    Py_RETURN_NONE;
  const I width = cos.shape[cos.ndim - 1], head_dim = e.x[0].shape[e.x[0].ndim - 1];
  const I tokens = e.x[0].shape[call.axes.batch_tokens[call.axes.count - 1]];
  if (!(e.how & GIVEN_COLUMNS) && cos.ndim == 2 && cos.shape[0] == 1 && tokens != 1) Py_RETURN_NONE;
  if ((e.how & CHECK_COLUMNS) && may_repeat_columns(cos)) Py_RETURN_NONE;
  job.pairs = form ? width / 2 : width;
  I r = head_dim, offset = PyLong_AsLongLong(args[2]);
  if (args[1] != Py_None) r = PyLong_CheckExact(args[1]) ? PyLong_AsLongLong(args[1]) : -1;
  if (r == 0) r = 2 * job.pairs;
  if (PyErr_Occurred()) return PyErr_Clear(), Py_NewRef(Py_None);
  if (offset < 0) offset += head_dim;
  if (r != 2 * job.pairs || width != (form ? r : job.pairs)) Py_RETURN_NONE;
  const bool interleaved = PyUnicode_CompareWithASCIIString(layout, "interleaved") == 0;
  const bool half = PyUnicode_CompareWithASCIIString(layout, "half") == 0;
  const bool mixed = PyUnicode_CompareWithASCIIString(layout, "interleaved_to_half") == 0;
  if (!interleaved && !half && !mixed) Py_RETURN_NONE;
  set_layout(job, !half, interleaved, e.how);
  job.before = offset;
  return run_calls(e, out, slots, args[12], nullptr, form == 2 ? 2 : 1);
}

namespace {

// Sets up a call that rotates a row by the angles of positions, which are read already.
bool place_turn(Call& call, char*& buffer, const Variant& v, int how) {
  const int columns = v.tables->components ? 0 : -1;
  memset(&call.job, 0, sizeof(Job));
  set_layout(call.job, false, false, how);
  call.job.lookup = true, call.job.pairs = v.pairs, call.weights = 0, call.arrays = 1;
  if (!fit_positions(call, buffer, v) || !place_operands(call) || !read_angles(call, columns) ||
      !place_tables(call, v.tables, columns >= 0))
    return false;
  collapse(call);
  return true;
}

bool have_one_shape(const Array& x, const Array& y) {
  return x.ndim == y.ndim && memcmp(x.shape, y.shape, x.ndim * sizeof(I)) == 0;
}

}  // namespace

// look_up_angles(rope, positions, like, head_dim, inverse, old, old_positions): cos and sin, side
// by side in an array (batch..., tokens, r) of the library of like, or None. head_dim may be None:
// that of like. With a rope `old` they are of differences, and those of old_positions are turned
// back.
PyObject* look_up_angles(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 7) return fail("look_up_angles takes seven arguments"), nullptr;
  Entry e;
  e.how = ONE;
  const bool inverse = args[4] == Py_True, differs = args[5] != Py_None;
  Array like;
  Call &call = e.call[0], &back = e.call[1];
  Array &x = e.x[0], &positions = call.angle[0];
  if (!takes(e, args[2]) || !read_fields(args[2], e.library, like)) return decline();
  I head_dim = like.ndim ? like.shape[like.ndim - 1] : 0;
  if (args[3] != Py_None) head_dim = PyLong_CheckExact(args[3]) ? PyLong_AsLongLong(args[3]) : 0;
  else if (!is_float(like.dtype)) Py_RETURN_NONE;
  if (PyErr_Occurred()) return PyErr_Clear(), Py_NewRef(Py_None);
  if (head_dim < 1 || !read_positions(e, args[1], 0, positions)) return decline();
  if (differs &&
      (!read_positions(e, args[6], 2, back.angle[0]) || !have_one_shape(positions, back.angle[0])))
    return decline();
  Variant v, old;
  Ref owner, old_owner;
  const bool wide = like.dtype == FLOAT64;
  v.head_dim = head_dim, v.inverse = inverse, v.wide = wide;
  old = v, old.inverse = true;  // without the attention factor
  if (!find_variant(args[0], count_elements(positions), v, owner)) return decline();
  if (differs && !find_variant(args[5], count_elements(positions), old, old_owner))
    return decline();
  if (differs && old.pairs != v.pairs) Py_RETURN_NONE;
  // Pairs (1, -0), which rotate to cos and sin: a product with 1 is exact, and to add -0 changes no
  // bit. A sum of zeros is -0 only where both are, and there the cosine is positive.
  const I size = wide ? 8 : 4, r = 2 * v.pairs;
  x.ndim = 0, x.dtype = wide ? FLOAT64 : FLOAT32, call.axes.count = 0, call.axes.heads = -1;
  const int lead = v.tables->components > 0, rows = positions.ndim - lead;
  if (rows < 0 || rows > MAX_DIMS - 2 || is_empty(positions)) Py_RETURN_NONE;
  for (int i = 0; i < rows + (rows == 0) + 1; i++) {
    const bool last = i == rows + (rows == 0);
    if (!last) call.axes.batch_tokens[call.axes.count++] = i;
    x.shape[i] = last ? r : rows ? positions.shape[lead + i] : 1;
    x.strides[x.ndim++] = last ? size : 0;
  }
  if (!(e.buffers[1] = x.data = (char*)malloc(r * size))) return PyErr_NoMemory();
  for (I i = 0; i < r; i++) {
    const double value = i < v.pairs ? 1.0 : -0.0;
    if (wide) ((double*)x.data)[i] = value;
    else ((float*)x.data)[i] = (float)value;
  }
  x.extent = {0, r * size};
  Ref y(allocate(e, x.shape, x.ndim, x.dtype, e.y[0]));
  if (!y.object) return decline();
  call.x = e.x, call.y = back.x = back.y = e.y, back.axes = call.axes;
  if (!place_turn(call, e.buffers[0], v, 0) ||
      (differs && !place_turn(back, e.buffers[3], old, INVERSE)))
    return decline();
  for (int i = 0; i < 1 + differs; i++)
    if (!run(e.call[i], e.library)) return nullptr;
  return Py_NewRef(y.object);
}

// --- set up --------------------------------------------------------------------------------------

bool intern_names() {
  for (int i = 0; i < NAMES; i++)
    if (!names[i] && !(names[i] = PyUnicode_InternFromString(NAME_TEXTS[i]))) return false;
  return true;
}

// set_up_calls(QKNorm, choice, find_tables): what calls are told by from now on. choice.name is the
// forced path; find_tables(rope, head_dim, inverse, wide) returns a handle of read_tables, whether
// pairs are interleaved on input and on output, and where the slice starts, with its pairs; or
// None.
PyObject* set_up_calls(PyObject*, PyObject* args) {
  PyObject *norm, *chosen, *find;
  if (!PyArg_ParseTuple(args, "OOO", &norm, &chosen, &find)) return nullptr;
  replace(norm_type, norm), replace(choice, chosen), replace(find_tables, find);
  Py_RETURN_NONE;
}
