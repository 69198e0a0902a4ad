// From arrays to kernels: checks that they fit, collapses their axes, and rotates them on one
// thread or several. Nothing is kept between calls but digit tables.
#include "call.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

namespace {

const int MAX_THREADS = 256;

// --- threads -------------------------------------------------------------------------------------

struct Part {
  const Job* job;
  const Kernels* kernels;
  I start, stop;
  char* scratch;
  pthread_t thread;
  bool started;
};

void* run_part(void* argument) {
  Part* part = (Part*)argument;
  part->kernels->rotate(part->job, part->start, part->stop, part->scratch);
  return nullptr;
}

// Rotates all rows in equal parts on so many threads, which end before this returns. The caller
// runs the parts of threads that do not start. Without memory it rotates alone and in small blocks,
// or returns false, before anything is written, where not even a token of so large heads fits.
bool run_parts(Job& job, const Kernels* kernels, I threads) {
  threads = threads < job.rows ? threads : job.rows;
  threads = threads < MAX_THREADS ? threads : MAX_THREADS;
  I size = kernels->count_scratch(&job) + 64;
  char* memory = threads > 1 ? (char*)malloc(threads * (size + sizeof(Part) + 64)) : nullptr;
  if (!memory) {
    char small[1 << 15];
    if (size > (I)sizeof small && !(memory = (char*)malloc(size))) {
      job.block = 1, job.is_large = false;
      size = kernels->count_scratch(&job) + 64;
      if (size > (I)sizeof small) return false;
    }
    char* scratch = memory ? memory : small;
    kernels->rotate(&job, 0, job.rows, scratch + -(uintptr_t)scratch % 64);
    free(memory);
    return true;
  }
  Part* parts = (Part*)(memory + threads * (size + 64));
  sigset_t all, before;  // signals go to threads of Python
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (I i = 0; i < threads; i++) {
    char* scratch = memory + i * (size + 64);
    scratch += -(uintptr_t)scratch % 64;
    const I start = job.rows * i / threads, stop = job.rows * (i + 1) / threads;
    parts[i] = {&job, kernels, start, stop, scratch, {}, false};
    if (i > 0)
      parts[i].started = pthread_create(&parts[i].thread, nullptr, run_part, &parts[i]) == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (I i = 0; i < threads; i++)
    if (!parts[i].started) run_part(&parts[i]);
  for (I i = 0; i < threads; i++)
    if (parts[i].started) pthread_join(parts[i].thread, nullptr);
  free(memory);
  return true;
}

// Runs of frequencies that read one component of positions; false if one does not exist.
bool split_segments(Job& job, const int32_t* component) {
  I runs = 0;
  for (I i = 0; i < job.pairs; i++) {
    if (component[i] < 0 || component[i] >= job.components) {
      PyErr_Format(PyExc_ValueError, "components must be indices below %lld",
                   (long long)job.components);
      return false;
    }
    runs += i == 0 || component[i] != component[i - 1];
  }
  job.component = component, job.segments = 0;
  if (runs > job.components || runs > MAX_SEGMENTS) return true;
  for (I i = 0; i < job.pairs; i++)
    if (i + 1 == job.pairs || component[i + 1] != component[i])
      job.segment[job.segments++] = {component[i], i + 1};
  return true;
}

}  // namespace

bool run(Call& call, Library library) {
  I elements = 0;
  for (int k = 0; k < call.arrays; k++) elements += count_elements(call.x[k]);
  I threads = elements / find_threshold(THREAD_ELEMENTS);
  if (threads > 1) {
    Ref most(PyObject_CallNoArgs(functions[library][LIMIT_THREADS]));
    const I n = most.object ? PyLong_AsLongLong(most) : 0;
    if (PyErr_Occurred()) return false;
    threads = threads < n ? threads : n;
  }
  bool done;
  if (elements * SIZES[call.job.dtype] > find_threshold(RELEASE_BYTES) || threads > 1) {
    PyThreadState* state = PyEval_SaveThread();
    done = run_parts(call.job, find_kernels(), threads);
    PyEval_RestoreThread(state);
  } else {
    done = run_parts(call.job, find_kernels(), 1);
  }
  if (!done) PyErr_NoMemory();
  return done;
}

// --- checks --------------------------------------------------------------------------------------

// Checks that arrays, results and weights fit each other, and places them in the job.
bool place_operands(Call& call) {
  Job& job = call.job;
  const Array& first = call.x[0];
  job.dtype = first.dtype, job.operands = call.arrays;
  const int last = first.ndim - 1;
  if (!is_float(first.dtype) || last < 1)
    return fail("an array has no dtype or axes that can be rotated");
  const I heads = call.axes.heads, head_dim = first.shape[last];
  uint32_t found = heads < 0 ? 0 : 1u << (heads & 31);
  bool are_axes = heads < last && call.axes.count + (heads >= 0) == last;
  for (int i = 0; are_axes && i < call.axes.count; i++) {
    const I axis = call.axes.batch_tokens[i];
    are_axes = axis >= 0 && axis < last && !(found >> axis & 1);
    found |= 1u << (axis & 31);
  }
  if (!are_axes) return fail("axes do not fit the arrays");
  if (job.before < 0 || job.pairs < 1 || job.before > head_dim || job.pairs > head_dim)
    return fail("the slice lies outside head_dim");
  job.after = head_dim - job.before - 2 * job.pairs;
  if (job.after < 0) return fail("the slice lies outside head_dim");
  if (!(job.before + job.after)) job.normalizes_rest = false;
  for (int k = 0; k < call.arrays; k++) {
    const Array &x = call.x[k], &y = call.y[k];
    bool fits =
        x.dtype == first.dtype && x.ndim == first.ndim && y.dtype == x.dtype && y.ndim == x.ndim;
    for (int i = 0; fits && i <= last; i++) {
      fits = (x.shape[i] == first.shape[i] || i == heads);
      fits = fits && x.shape[i] == y.shape[i];
    }
    const I size = SIZES[x.dtype];
    fits = fits && (x.strides[last] == size || is_empty(x)) &&
           (y.strides[last] == size || is_empty(x));
    if (!fits) return fail("arrays and results differ, or head_dim is not contiguous");
    Operand& o = job.operand[k];
    o = {x.data,
         y.data,
         heads < 0 ? 1 : x.shape[heads],
         heads < 0 ? 0 : x.strides[heads],
         heads < 0 ? 0 : y.strides[heads],
         nullptr,
         NO_DTYPE};
    if (k < call.weights && call.weight[k].ndim) {
      const Array& w = call.weight[k];
      const I length = job.normalizes_rest ? first.shape[last] : 2 * job.pairs;
      if (w.ndim != 1 || !is_float(w.dtype) || !is_contiguous(w) || w.shape[0] != length)
        return fail("a weight does not fit");
      o.weight = w.data, o.weight_dtype = w.dtype;
    }
  }
  return true;
}

// Checks positions and their fractions, or cos and sin, and takes their last or first axis, of
// components or pairs, away from those of batch and tokens.
bool read_angles(Call& call, int columns) {
  Job& job = call.job;
  const Dtype compute = job.dtype == FLOAT64 ? FLOAT64 : FLOAT32;
  job.components = 1, call.table_heads = 1;
  for (int k = 0; k < call.angles; k++) {
    Array& x = call.angle[k];
    I& last = k ? job.b_last : job.a_last;
    const bool is_position = job.lookup && k == 0;
    bool fits = is_position  ? !is_float(x.dtype)
                : job.lookup ? x.dtype == compute
                             : is_float(x.dtype);
    if (!job.lookup || columns >= 0) {
      if (x.ndim == 0) return fail("angles have too few axes");
      const int axis = job.lookup && columns == 0 ? 0 : x.ndim - 1;
      const I length = x.shape[axis];
      last = x.strides[axis] * (job.lookup ? 1 : columns);
      if (!job.lookup) fits = fits && columns > 0 && length > (job.pairs - 1) * columns;
      else if (k == 0) job.components = length;
      else fits = fits && length == job.components;
      x.ndim--;
      for (int i = axis; i < x.ndim; i++)
        x.shape[i] = x.shape[i + 1], x.strides[i] = x.strides[i + 1];
    }
    if (!job.lookup && k == 1) fits = fits && x.dtype == call.angle[0].dtype;
    if (!job.lookup && call.axes.heads >= 0 && x.ndim == call.axes.count + 1) {
      const I heads = x.shape[--x.ndim];
      if (k == 0) call.table_heads = heads;
      fits = fits && heads > 0 && heads == call.table_heads;
      call.head_steps[k] = x.strides[x.ndim];
    }
    fits = fits && x.ndim <= call.axes.count && (k == 0 || x.ndim == call.angle[0].ndim);
    for (int i = 0; fits && i < x.ndim; i++) {
      const I length = call.x[0].shape[call.axes.batch_tokens[call.axes.count - x.ndim + i]];
      fits = x.shape[i] == 1 || x.shape[i] == length;
      if (k == 1) fits = fits && x.shape[i] == call.angle[0].shape[i];
    }
    if (!fits) return fail("angles do not fit the arrays");
  }
  for (int k = 0; k < call.arrays; k++) {
    // A query turns like its key, whose heads those of angles are.
    const bool fits = k > 0 ? job.operand[k].heads == call.table_heads
                            : job.operand[k].heads % call.table_heads == 0;
    if (call.table_heads > 1 && !fits) return fail("heads of angles do not fit");
    job.operand[k].heads /= call.table_heads;
  }
  job.a = call.angles > 0 ? call.angle[0].data : nullptr;
  job.b = call.angles > 1 ? call.angle[1].data : nullptr;
  job.angle_dtype = call.angles > 0 ? call.angle[0].dtype : INT64;
  return true;
}

bool place_tables(Call& call, const Tables* t, bool has_components) {
  Job& job = call.job;
  if (t->dtype != (job.dtype == FLOAT64 ? FLOAT64 : FLOAT32) || t->pairs != job.pairs ||
      (call.angles > 1 && !t->frequencies))
    return fail("digit tables do not fit the rotation");
  job.inner = t->inner, job.outer = t->outer, job.factor = t->factor;
  job.low = t->low, job.middle = t->middle, job.high = t->high, job.frequencies = t->frequencies;
  job.segments = 1, job.segment[0] = {0, job.pairs};
  if (call.angles == 0) return true;  // implicit positions are those of all components
  if (has_components != (t->component != nullptr))
    return fail("positions have components, or frequencies read some");
  return !t->component || split_segments(job, t->component);
}

// --- from arrays to a job ------------------------------------------------------------------------

// Adds the axes of batch and tokens to a job, collapsed into as few as the strides of all arrays
// allow, and says how many tokens are computed together.
void collapse(Call& call) {
  Job& job = call.job;
  const Axes& axes = call.axes;
  const bool two = call.arrays > 1;
  // By their place in Strided, null where there is none.
  const Array* xs[] = {&call.x[0], &call.y[0], two ? &call.x[1] : nullptr,
                       two ? &call.y[1] : nullptr};
  // Arrays of which leading axes may be missing.
  const Array* rows[] = {call.angles > 0 ? &call.angle[0] : nullptr,
                         call.angles > 1 ? &call.angle[1] : nullptr,
                         job.slots ? &call.slots : nullptr};
  job.ndim = 0, job.rows = 1;
  const Array* first = xs[Q_IN];
  for (int i = 0; i < axes.count; i++) {
    Dim dim = {first->shape[axes.batch_tokens[i]], {}};
    job.rows *= dim.length;
    if (dim.length == 1) continue;
    for (int s = 0; s < ANGLES_A; s++)
      if (xs[s]) dim.steps[s] = xs[s]->strides[axes.batch_tokens[i]];
    for (int s = ANGLES_A; s < STRIDED; s++) {
      const Array* x = rows[s - ANGLES_A];
      const int j = x ? i - (axes.count - x->ndim) : -1;
      if (j >= 0 && x->shape[j] != 1) dim.steps[s] = x->strides[j];
    }
    if (!rows[0]) dim.steps[ANGLES_A] = i == axes.count - 1;  // implicit positions
    job.dims[job.ndim++] = dim;
  }
  if (call.table_heads > 1) {  // heads of one angle stay heads
    Dim dim = {call.table_heads, {}};
    for (int k = 0; k < call.arrays; k++) {
      const Operand& o = job.operand[k];
      dim.steps[2 * k] = o.heads * o.x_head, dim.steps[2 * k + 1] = o.heads * o.y_head;
    }
    dim.steps[ANGLES_A] = call.head_steps[0], dim.steps[ANGLES_B] = call.head_steps[1];
    job.rows *= dim.length, job.dims[job.ndim++] = dim;
  }
  for (bool found = true; found;) {
    found = false;
    for (int i = 0; i < job.ndim && !found; i++)
      for (int j = 0; j < job.ndim && !found; j++) {
        const Dim &outer = job.dims[i], &inner = job.dims[j];
        found = i != j;
        for (int s = 0; s < STRIDED; s++)
          found = found && outer.steps[s] == inner.steps[s] * inner.length;
        if (!found) continue;
        job.dims[j].length *= outer.length;
        memmove(&job.dims[i], &job.dims[i + 1], (job.ndim - i - 1) * sizeof(Dim));
        job.ndim--;
      }
  }
  // A single token has an axis too, which counts implicit positions.
  if (job.ndim == 0 || (!rows[0] && job.dims[job.ndim - 1].steps[ANGLES_A] == 0))
    job.dims[job.ndim++] = {1, {}};
  I bytes = 0, far = 0;
  const Dim& last = job.dims[job.ndim - 1];
  for (int k = 0; k < call.arrays; k++) {
    bytes += count_elements(call.x[k]) * SIZES[job.dtype];
    const I head = job.operand[k].x_head, token = last.steps[2 * k];
    far |= job.operand[k].heads > 1 && (head < 0 ? -head : head) > (token < 0 ? -token : token);
  }
  job.block =
      find_threshold(far && bytes >= find_threshold(FAR_BYTES) ? FAR_ANGLE_BYTES : ANGLE_BYTES) /
      (2 * job.pairs * (job.dtype == FLOAT64 ? 8 : 4));
  if (!job.lookup) job.block *= 4;  // given tables are read from memory, in long runs
  job.block = job.block < 1 ? 1 : job.block < last.length ? job.block : last.length;
  job.is_large = bytes >= find_threshold(LARGE_BYTES);
}

// --- digit tables --------------------------------------------------------------------------------

static const char TABLES_NAME[] = "rope_xp.tables";

Tables* get_tables(PyObject* capsule) {
  return (Tables*)PyCapsule_GetPointer(capsule, TABLES_NAME);
}

void drop(Tables* tables) {
  if (--tables->keepers == 0) free(tables);
}

static void evict_tables(PyObject* capsule) {
  Tables* tables = get_tables(capsule);
  Ref owner(tables->owner);
  tables->owner = nullptr;
  drop(tables);
}

// read_tables(fields, factor): a handle of digit tables (low, middle, high, frequencies, component)
// or, with a factor, of small ones (inner, outer, frequencies, component) for angles in float32.
// The handle keeps alive what they lie in. The last two may be None.
PyObject* read_tables(PyObject*, PyObject* args) {
  PyObject *fields, *factor;
  if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &fields, &factor)) return nullptr;
  const bool small = factor != Py_None;
  const I rows[2][3] = {{DIGIT, DIGIT, TOP_DIGIT + 1}, {3 * INNER, 2 * OUTER + TOP_DIGIT / INNER}};
  const int count = small ? 2 : 3;
  Tables given = {};
  if (small) given.factor = PyFloat_AsDouble(factor);
  if (PyErr_Occurred()) return nullptr;
  Array x[5];
  bool fits = PyTuple_Size(fields) == count + 2, absent = false;
  for (int i = 0; fits && i < count + 2; i++) {
    PyObject* field = PyTuple_GetItem(fields, i);
    const bool is_table = i < count;
    x[i].data = nullptr;
    if (!is_table && field == Py_None) continue;
    if (!read_array(field, x[i], absent)) return nullptr;
    if (i == 0) given.pairs = x[0].ndim == 2 ? x[0].shape[1] / 2 : 0;
    const Dtype dtype = is_table ? x[0].dtype : i > count ? INT32 : small ? FLOAT32 : x[0].dtype;
    fits = is_contiguous(x[i]) && x[i].dtype == dtype && x[i].ndim == 1 + is_table && !absent &&
           x[i].shape[is_table] == given.pairs * (1 + is_table) &&
           (!is_table || x[i].shape[0] == rows[small][i]);
  }
  if (!fits || given.pairs < 1 || !(x[0].dtype == FLOAT64 || (x[0].dtype == FLOAT32 && !small)))
    return fail("digit tables do not fit each other"), nullptr;
  given.dtype = small ? FLOAT32 : x[0].dtype;
  if (small) given.inner = (const double*)x[0].data, given.outer = (const double*)x[1].data;
  else given.low = x[0].data, given.middle = x[1].data, given.high = x[2].data;
  given.frequencies = x[count].data, given.component = (const int32_t*)x[count + 1].data;
  given.takes_fractions = given.frequencies;
  for (I i = 0; i < given.pairs; i++) {
    if (given.component && given.component[i] >= given.components)
      given.components = given.component[i] + 1;
    if (given.frequencies)  // NaN where a fraction of a token turns a pair too far
      given.takes_fractions &= given.dtype == FLOAT64
                                   ? !isnan(((const double*)given.frequencies)[i])
                                   : !isnan(((const float*)given.frequencies)[i]);
  }
  Tables* tables = (Tables*)malloc(sizeof(Tables));
  if (!tables) return PyErr_NoMemory();
  *tables = given;
  tables->owner = Py_NewRef(fields), tables->keepers = 1;
  PyObject* capsule = PyCapsule_New(tables, TABLES_NAME, evict_tables);
  if (!capsule) Py_DECREF(fields), free(tables);
  return capsule;
}

// --- the function --------------------------------------------------------------------------------

// Reads a tuple of arrays.
bool read_group(PyObject* group, Array* to, int* count, bool& absent) {
  *count = PyTuple_Check(group) ? (int)PyTuple_Size(group) : -1;
  if (*count < 0 || *count > 2) return fail("arrays come in tuples of at most two");
  for (int i = 0; i < *count; i++)
    if (!read_array(PyTuple_GetItem(group, i), to[i], absent)) return false;
  return true;
}

// rotate(arrays, results, weights, angles, tables, spec, prepares)
//
// tables: a handle of read_tables, or None where angles are cos and sin.
// spec: (batch and tokens axes, heads axis or -1, interleaved_in, interleaved_out, inverse, offset,
// pairs, columns, eps or None, weight_offset, normalizes_rest). columns: the axis of components of
// positions, 0 for the first, 1 for the last, -1 for none; or the step between columns of cos and
// sin that are read.
// Returns whether arrays were rotated. If not, nothing was written, as an array has no memory.
// If it `prepares`, it returns the bytes of the job in place of running it, for kernels of another
// processor.
PyObject* rotate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 7 || !PyTuple_Check(args[5]))
    return fail("rotate takes seven arguments, of which spec is a tuple"), nullptr;
  PyObject *axes, *eps;
  Array x[2], y[2];
  Call call;
  Job& job = call.job;
  memset(&job, 0, sizeof job);
  call.x = x, call.y = y;
  bool absent = false;
  int in, out, inverse, columns, rest, results;
  if (!PyArg_ParseTuple(args[5], "OLpppLLiOdp", &axes, &call.axes.heads, &in, &out, &inverse,
                        &job.before, &job.pairs, &columns, &eps, &job.weight_offset, &rest))
    return nullptr;
  job.interleaved_in = in, job.interleaved_out = out, job.inverse = inverse,
  job.normalizes_rest = rest;
  job.normalized = eps != Py_None, job.lookup = args[4] != Py_None;
  if (job.normalized) job.eps = PyFloat_AsDouble(eps);
  if (PyErr_Occurred() || !read_ints(axes, call.axes.batch_tokens, MAX_DIMS, &call.axes.count))
    return nullptr;
  if (!read_group(args[0], call.x, &call.arrays, absent) ||
      !read_group(args[1], call.y, &results, absent) ||
      !read_group(args[2], call.weight, &call.weights, absent) ||
      !read_group(args[3], call.angle, &call.angles, absent))
    return nullptr;
  if (call.arrays < 1 || call.arrays != results || (!job.lookup && call.angles != 2))
    return fail("arguments do not fit each other"), nullptr;
  if (!place_operands(call) || !read_angles(call, columns)) return nullptr;
  if (job.lookup) {
    const Tables* tables = get_tables(args[4]);
    if (!tables || !place_tables(call, tables, columns >= 0)) return nullptr;
  }
  const int prepares = PyObject_IsTrue(args[6]);
  if (prepares < 0) return nullptr;
  if (absent) Py_RETURN_FALSE;
  collapse(call);
  if (job.rows == 0) Py_RETURN_TRUE;
  if (prepares) return PyBytes_FromStringAndSize((const char*)&job, sizeof job);
  const bool of_numpy = find_library(PyTuple_GetItem(args[0], 0)) == NUMPY;
  if (!run(call, of_numpy ? NUMPY : TORCH)) return nullptr;
  Py_RETURN_TRUE;
}
