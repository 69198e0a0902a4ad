// From arrays of Python to kernels: reads arrays where they lie, checks that they fit, and rotates
// them on one thread or several. Nothing is kept between calls but what `set_up` was given.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "rotate.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
extern "C" const Kernels rope_xp_kernels_2, rope_xp_kernels_3, rope_xp_kernels_4;
#else
extern "C" const Kernels rope_xp_kernels_0;
#endif

namespace {

// Sizes at which a call changes its ways. Tests change them by `tune`.
struct Threshold {
  const char* name;
  I value;
};
enum {
  RELEASE_BYTES,
  THREAD_ELEMENTS,
  LARGE_BYTES,
  ANGLE_BYTES,
  FAR_BYTES,
  FAR_ANGLE_BYTES,
  THRESHOLDS
};
Threshold thresholds[THRESHOLDS] = {
    {"release_bytes", 1 << 15},  // larger arrays are rotated while other threads run Python
    {"thread_elements",
     1 << 19},  // of which a thread rotates at least so many, as starting one takes time
    {"large_bytes", 1 << 25},      // larger arrays leave the last cache before they are read again
    {"angle_bytes", 1 << 14},      // cos and sin of a block, which stay in the first cache,
    {"far_bytes", 1 << 22},        // but in larger arrays where heads lie far apart,
    {"far_angle_bytes", 1 << 21},  // have so many bytes, as long runs of tokens stream
};
const int MAX_THREADS = 256;

I find_threshold(int i) { return thresholds[i].value; }

// --- instruction sets ----------------------------------------------------------------------------

struct Level {
  const char* name;
  const Kernels* kernels;
};

#if defined(__x86_64__)
const Level LEVELS[] = {{"x86-64-v2", &rope_xp_kernels_2},
                        {"x86-64-v3", &rope_xp_kernels_3},
                        {"x86-64-v4", &rope_xp_kernels_4}};

bool has_bits(uint32_t value, uint32_t bits) { return (value & bits) == bits; }

// How many of LEVELS this processor and system have.
int count_levels() {
  uint32_t a, b, c, d, low, high;
  __cpuid(1, a, b, c, d);
  if (!has_bits(c, bit_SSE3 | bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT)) return 0;
  if (!has_bits(c, bit_OSXSAVE | bit_AVX | bit_F16C | bit_FMA | bit_MOVBE)) return 1;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (!has_bits(low, 0x06) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 1;
  if (!has_bits(b, bit_AVX2 | bit_BMI | bit_BMI2)) return 1;
  return has_bits(low, 0xe6) && has_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512CD |
                                                bit_AVX512DQ | bit_AVX512VL)
             ? 3
             : 2;
}
#else
const Level LEVELS[] = {{"baseline", &rope_xp_kernels_0}};
int count_levels() { return 1; }
#endif

const Level* level;

// --- arrays --------------------------------------------------------------------------------------

// A reference to an object, dropped at the end of its scope.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* o) : object(o) {}
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
  I shape[MAX_DIMS], strides[MAX_DIMS];  // strides in bytes
};

const int SIZES[] = {2, 2, 4, 8, 4, 8, 0};

bool is_float(Dtype dtype) { return dtype <= FLOAT64; }
bool is_empty(const Array& x) {
  for (int i = 0; i < x.ndim; i++)
    if (x.shape[i] == 0) return true;
  return false;
}

Extent measure(const Array& x, I below) {  // axes with strides below a number
  Extent e = {0, SIZES[x.dtype]};
  for (int i = 0; i < x.ndim; i++) {
    I step = x.strides[i], last = (x.shape[i] - 1) * step;
    if ((step < 0 ? -step : step) >= below) continue;
    if (last < 0) e.start += last;
    else e.end += last;
  }
  return e;
}

// The fields of an ndarray, as numpy's headers declare them for ABI 2.
struct NumpyArray {
  PyObject head;
  char* data;
  int nd;
  Py_ssize_t *dimensions, *strides;
  PyObject *base, *descr;
  int flags;
};

// DLPack's tensor, and the table of functions by which torch fills one: dlpack.h, version 1.
struct DLTensor {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DLExchange {
  uint32_t major, minor;
  void *previous, *allocate, *from_object, *to_object;
  int (*view)(void* object, DLTensor* tensor);
};

PyObject *numpy_type, *numpy_dtypes[NO_DTYPE];  // null: arrays are read by `describe`
PyObject* torch_types[2];
const DLExchange* torch_exchange;

void read_numpy(const NumpyArray* a, Array& x) {
  x.data = a->data, x.ndim = a->nd, x.dtype = NO_DTYPE;
  for (int i = 0; i < NO_DTYPE; i++)
    if (a->descr == numpy_dtypes[i]) x.dtype = (Dtype)i;
  for (int i = 0; i < x.ndim && i < MAX_DIMS; i++)
    x.shape[i] = a->dimensions[i], x.strides[i] = a->strides[i];
}

bool read_torch(PyObject* object, Array& x) {
  DLTensor t;
  if (torch_exchange->view(object, &t)) {
    PyErr_Clear();
    return false;
  }
  x.data = (char*)t.data + t.byte_offset, x.ndim = t.ndim, x.dtype = NO_DTYPE;
  if (t.device_type != 1) return false;
  if (t.code == 2)
    x.dtype = t.bits == 16 ? FLOAT16 : t.bits == 32 ? FLOAT32 : t.bits == 64 ? FLOAT64 : NO_DTYPE;
  if (t.code == 4 && t.bits == 16) x.dtype = BFLOAT16;
  if (t.code == 0) x.dtype = t.bits == 32 ? INT32 : t.bits == 64 ? INT64 : NO_DTYPE;
  for (int i = 0; i < x.ndim && i < MAX_DIMS; i++)
    x.shape[i] = t.shape[i], x.strides[i] = t.strides[i] * (t.bits / 8);
  return true;
}

bool read_ints(PyObject* sequence, I* to, int most, int* count) {
  Ref items(PySequence_Tuple(sequence));
  if (!items.object) return false;
  *count = (int)PyTuple_Size(items);
  for (int i = 0; i < *count && i < most; i++) to[i] = PyLong_AsLongLong(PyTuple_GetItem(items, i));
  return !PyErr_Occurred();
}

// Reads an array of numpy or torch by its fields, or another by describe(x): its address, the
// number of its dtype, its shape and its strides in bytes. Sets an error and returns false if it
// does not fit. An array without memory, such as a functional tensor, is `absent`.
bool read_array(PyObject* object, PyObject* describe, Array& x, bool& absent) {
  PyObject* type = (PyObject*)Py_TYPE(object);
  bool known = false;
  if (type == numpy_type) {
    read_numpy((const NumpyArray*)object, x);
    known = x.dtype != NO_DTYPE;
  } else if (torch_exchange && (type == torch_types[0] || type == torch_types[1])) {
    known = read_torch(object, x);
  }
  if (!known) {
    Ref fields(PyObject_CallFunctionObjArgs(describe, object, nullptr));
    if (!fields.object) return false;
    long long address, dtype;
    PyObject *shape, *strides;
    if (!PyArg_ParseTuple(fields, "LLOO", &address, &dtype, &shape, &strides)) return false;
    int ndim = 0;
    x.data = (char*)(intptr_t)address,
    x.dtype = dtype < 0 || dtype > NO_DTYPE ? NO_DTYPE : (Dtype)dtype;
    if (!read_ints(shape, x.shape, MAX_DIMS, &x.ndim) ||
        !read_ints(strides, x.strides, MAX_DIMS, &ndim))
      return false;
    if (ndim != x.ndim) x.dtype = NO_DTYPE;
  }
  if (x.dtype == NO_DTYPE || x.ndim > MAX_DIMS) {
    PyErr_SetString(PyExc_ValueError, "an array has a dtype or axes that kernels do not read");
    return false;
  }
  absent = absent || (!x.data && !is_empty(x));
  x.extent = measure(x, INT64_MAX);
  return true;
}

// --- overlap -------------------------------------------------------------------------------------

I floor_mod(I a, I b) { return (a % b + b) % b; }

// Whether two arrays have no byte in common, as far as that is easy to see: they lie apart, or in
// each period of a stride, as slices of one projection do.
bool are_disjoint(const Array& x, const Array& y) {
  if (is_empty(x) || is_empty(y)) return true;
  const I distance = y.data - x.data;
  Extent a = x.extent, b = y.extent;
  if (a.end <= distance + b.start || distance + b.end <= a.start) return true;
  const Array* both[] = {&x, &y};
  for (const Array* z : both)
    for (int i = 0; i < z->ndim; i++) {
      const I period = z->strides[i] < 0 ? -z->strides[i] : z->strides[i];
      bool divides = period > 0 && z->shape[i] > 1;
      for (const Array* w : both)
        for (int j = 0; j < w->ndim && divides; j++) {
          I step = w->strides[j] < 0 ? -w->strides[j] : w->strides[j];
          divides = w->shape[j] <= 1 || step < period || step % period == 0;
        }
      if (!divides) continue;
      a = measure(x, period), b = measure(y, period);
      const I gap =
          floor_mod(distance + b.start - a.start, period);  // from the start of x to that of y
      if (gap >= a.end - a.start && gap + (b.end - b.start) <= period) return true;
    }
  return false;
}

// --- from arrays to a job ------------------------------------------------------------------------

struct Axes {
  I batch_tokens[MAX_DIMS];  // batch, then tokens
  int count;
  I heads;  // -1 for none
};

bool fail(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

// Adds the axes of batch and tokens to a job, collapsed into as few as the strides of all arrays
// allow. `xs` are arrays with these axes, by their place in Strided, null where there is none;
// `angles` have the axes (batch..., tokens), of which leading ones may be missing.
void collapse(Job& job, const Axes& axes, const Array* const xs[], const Array* const angles[2],
              const int angle_ndim) {
  job.ndim = 0, job.rows = 1;
  const Array* first = xs[Q_IN];
  for (int i = 0; i < axes.count; i++) {
    Dim dim = {first->shape[axes.batch_tokens[i]], {}};
    job.rows *= dim.length;
    if (dim.length == 1) continue;
    for (int s = 0; s <= OFFSETS; s++)
      if (xs[s]) dim.steps[s] = xs[s]->strides[axes.batch_tokens[i]];
    for (int k = 0; k < 2; k++) {
      const int j = i - (axes.count - angle_ndim);
      if (angles[k] && j >= 0 && angles[k]->shape[j] != 1)
        dim.steps[ANGLES_A + k] = angles[k]->strides[j];
    }
    if (!angles[0]) dim.steps[ANGLES_A] = i == axes.count - 1;  // implicit positions
    job.dims[job.ndim++] = dim;
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
  if (job.ndim == 0 || (!angles[0] && job.dims[job.ndim - 1].steps[ANGLES_A] == 0))
    job.dims[job.ndim++] = {1, {}};
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

// Whether any position of a job is out of range.
bool exceeds_limit(const Job& job) {
  if (!job.a) return job.rows > 0 && job.dims[job.ndim - 1].length > LIMIT;
  uint64_t found = 0;
  const Dim& last = job.dims[job.ndim - 1];
  for (I row = 0; row < job.rows; row += last.length) {
    const char* tokens = job.a;
    I rest = row / last.length;
    for (int d = job.ndim - 2; d >= 0; rest /= job.dims[d--].length)
      tokens += rest % job.dims[d].length * job.dims[d].steps[ANGLES_A];
    for (I c = 0; c < job.components; c++)
      for (I i = 0; i < last.length; i++) {
        const char* p = tokens + c * job.a_last + i * last.steps[ANGLES_A];
        int32_t narrow;
        I position;
        if (job.angle_dtype == INT32) memcpy(&narrow, p, 4), position = narrow;
        else memcpy(&position, p, 8);
        // The modulus of -2**63 is 2**63, and no smaller number is out of range.
        found |= (position < 0 ? -(uint64_t)position : (uint64_t)position) >= (uint64_t)LIMIT;
      }
  }
  return found;
}

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

// --- functions of the module ---------------------------------------------------------------------

struct Call {
  Job job;
  Axes axes;
  Array x[2], y[2], weight[2], angle[2], whole_angle[2], offsets;
  int arrays, weights, angles;
  bool absent;
};

// Reads a tuple of arrays. A weight may be None, and then has no axes.
bool read_group(PyObject* group, PyObject* describe, Array* to, int most, int* count, bool& absent,
                bool may_be_none = false) {
  *count = PyTuple_Check(group) ? (int)PyTuple_Size(group) : -1;
  if (*count < 0 || *count > most)
    return fail("arrays come in tuples of at most two, offsets of one");
  for (int i = 0; i < *count; i++) {
    PyObject* item = PyTuple_GetItem(group, i);
    to[i].ndim = 0;
    if (may_be_none && item == Py_None) continue;
    if (!read_array(item, describe, to[i], absent)) return false;
  }
  return true;
}

bool is_contiguous(const Array& x) {
  I step = SIZES[x.dtype];
  for (int i = x.ndim - 1; i >= 0; step *= x.shape[i--])
    if (x.shape[i] != 1 && x.strides[i] != step) return false;
  return true;
}

// Digit tables, with a reference to the arrays that they lie in.
struct Tables {
  PyObject* owner;
  Dtype dtype;
  I pairs;
  const void *low, *middle, *high, *frequencies;  // frequencies may be null
  const int32_t* component;                       // null where positions have one component
};
const char TABLES_NAME[] = "rope_xp.tables";

void free_tables(PyObject* capsule) {
  Tables* tables = (Tables*)PyCapsule_GetPointer(capsule, TABLES_NAME);
  Py_DECREF(tables->owner);
  free(tables);
}

// read_tables(fields, describe): a handle of digit tables (low, middle, high, frequencies,
// component), of which the last two may be None. It keeps them alive, and never changes.
PyObject* read_tables(PyObject*, PyObject* args) {
  PyObject *fields, *describe;
  if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &fields, &describe)) return nullptr;
  if (PyTuple_Size(fields) != 5) return fail("digit tables have five fields"), nullptr;
  Array x[5];
  bool fits = true, absent = false, given[5];
  for (int i = 0; i < 5; i++) {
    PyObject* field = PyTuple_GetItem(fields, i);
    given[i] = i < 3 || field != Py_None;
    if (given[i] && !read_array(field, describe, x[i], absent)) return nullptr;
  }
  const I r = x[0].ndim == 2 ? x[0].shape[1] / 2 : 0, rows[] = {DIGIT, DIGIT, TOP_DIGIT + 1};
  for (int i = 0; i < 5 && fits; i++) {
    if (!given[i]) continue;
    fits = is_contiguous(x[i]) && x[i].dtype == (i == 4 ? INT32 : x[0].dtype) &&
           x[i].ndim == (i < 3 ? 2 : 1);
    fits =
        fits && (i < 3 ? x[i].shape[0] == rows[i] && x[i].shape[1] == 2 * r : x[i].shape[0] == r);
  }
  if (!fits || absent || r < 1) return fail("digit tables do not fit each other"), nullptr;
  Tables* tables = (Tables*)malloc(sizeof(Tables));
  if (!tables) return PyErr_NoMemory();
  *tables = {Py_NewRef(fields),
             x[0].dtype,
             r,
             x[0].data,
             x[1].data,
             x[2].data,
             given[3] ? x[3].data : nullptr,
             given[4] ? (const int32_t*)x[4].data : nullptr};
  PyObject* capsule = PyCapsule_New(tables, TABLES_NAME, free_tables);
  if (!capsule) Py_DECREF(tables->owner), free(tables);
  return capsule;
}

bool place_tables(Call& call, PyObject* capsule, bool has_components) {
  Job& job = call.job;
  const Tables* t = (const Tables*)PyCapsule_GetPointer(capsule, TABLES_NAME);
  if (!t) return false;
  if (t->dtype != (job.dtype == FLOAT64 ? FLOAT64 : FLOAT32) || t->pairs != job.pairs ||
      (call.angles > 1 && !t->frequencies))
    return fail("digit tables do not fit the rotation");
  job.low = t->low, job.middle = t->middle, job.high = t->high, job.frequencies = t->frequencies;
  job.segments = 1, job.segment[0] = {0, job.pairs};
  if (call.angles == 0) return true;  // implicit positions are those of all components
  if (has_components != (t->component != nullptr))
    return fail("positions have components, or frequencies read some");
  return !t->component || split_segments(job, t->component);
}

// Checks positions and their fractions, or cos and sin, and takes their last or first axis, of
// components or pairs, away from those of batch and tokens.
bool read_angles(Call& call, int columns) {
  Job& job = call.job;
  const Dtype compute = job.dtype == FLOAT64 ? FLOAT64 : FLOAT32;
  job.components = 1;
  for (int k = 0; k < call.angles; k++) {
    Array& x = call.angle[k];
    I& last = k ? job.b_last : job.a_last;
    const bool is_position = job.lookup && k == 0;
    bool fits = is_position  ? !is_float(x.dtype)
                : job.lookup ? x.dtype == compute
                             : is_float(x.dtype);
    call.whole_angle[k] = x;
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
    fits = fits && x.ndim <= call.axes.count && (k == 0 || x.ndim == call.angle[0].ndim);
    for (int i = 0; fits && i < x.ndim; i++) {
      const I length = call.x[0].shape[call.axes.batch_tokens[call.axes.count - x.ndim + i]];
      fits = x.shape[i] == 1 || x.shape[i] == length;
      if (k == 1) fits = fits && x.shape[i] == call.angle[0].shape[i];
    }
    if (!fits) return fail("angles do not fit the arrays");
  }
  job.a = call.angles > 0 ? call.angle[0].data : nullptr;
  job.b = call.angles > 1 ? call.angle[1].data : nullptr;
  job.angle_dtype = call.angles > 0 ? call.angle[0].dtype : INT64;
  return true;
}

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

// Whether no result overlaps anything else that is read or written, but the array that it replaces.
bool are_results_apart(const Call& call, PyObject* arrays, PyObject* results) {
  for (int k = 0; k < call.arrays; k++) {
    const Array& y = call.y[k];
    if (k == 1 && !are_disjoint(y, call.y[0])) return false;
    for (int j = 0; j < call.arrays; j++) {
      const bool same = j == k && PyTuple_GetItem(arrays, k) == PyTuple_GetItem(results, k);
      if (!same && !are_disjoint(y, call.x[j])) return false;
    }
    for (int j = 0; j < call.angles; j++)
      if (!are_disjoint(y, call.whole_angle[j])) return false;
    for (int j = 0; j < call.weights; j++)
      if (call.weight[j].ndim && !are_disjoint(y, call.weight[j])) return false;
  }
  return true;
}

// rotate(arrays, results, weights, angles, offsets, tables, spec, describe, limit_threads, checks)
//
// tables: a handle of read_tables, or None where angles are cos and sin.
// spec: (batch and tokens axes, heads axis or -1, interleaved_in, interleaved_out, inverse, offset,
// pairs, columns, eps or None, weight_offset, normalizes_rest). columns: the axis of components of
// positions, 0 for the first, 1 for the last, -1 for none; or the step between columns of cos and
// sin that are read.
// Returns whether arrays were rotated. If not, nothing was written: an array has no memory, or of
// the `checks` 1 found positions out of range, or 2 did not see that results overlap nothing else.
// Check 4 returns the bytes of the job in place of running it, for kernels of another processor.
PyObject* rotate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 10 || !PyTuple_Check(args[6]))
    return fail("rotate takes ten arguments, of which spec is a tuple"), nullptr;
  PyObject *describe = args[7], *limit = args[8], *axes, *eps;
  Call call;
  Job& job = call.job;
  memset(&job, 0, sizeof job);
  call.absent = false;
  int in, out, inverse, columns, rest, results, offsets;
  if (!PyArg_ParseTuple(args[6], "OLpppLLiOdp", &axes, &call.axes.heads, &in, &out, &inverse,
                        &job.before, &job.pairs, &columns, &eps, &job.weight_offset, &rest))
    return nullptr;
  job.interleaved_in = in, job.interleaved_out = out, job.inverse = inverse,
  job.normalizes_rest = rest;
  job.normalized = eps != Py_None, job.lookup = args[5] != Py_None;
  if (job.normalized) job.eps = PyFloat_AsDouble(eps);
  if (PyErr_Occurred() || !read_ints(axes, call.axes.batch_tokens, MAX_DIMS, &call.axes.count))
    return nullptr;
  if (!read_group(args[0], describe, call.x, 2, &call.arrays, call.absent) ||
      !read_group(args[1], describe, call.y, 2, &results, call.absent) ||
      !read_group(args[2], describe, call.weight, 2, &call.weights, call.absent, true) ||
      !read_group(args[3], describe, call.angle, 2, &call.angles, call.absent) ||
      !read_group(args[4], describe, &call.offsets, 1, &offsets, call.absent))
    return nullptr;
  if (call.arrays < 1 || call.arrays != results || (!job.lookup && call.angles != 2))
    return fail("arguments do not fit each other"), nullptr;
  if (!place_operands(call) || !read_angles(call, columns)) return nullptr;
  if (job.lookup && !place_tables(call, args[5], columns >= 0)) return nullptr;
  if (offsets) {
    bool fits =
        call.arrays == 2 && call.offsets.dtype == INT64 && call.offsets.ndim == call.x[1].ndim;
    for (int i = 0; fits && i < call.axes.count; i++)
      fits = call.offsets.shape[call.axes.batch_tokens[i]] ==
             call.x[1].shape[call.axes.batch_tokens[i]];
    if (!fits) return fail("offsets do not fit the arrays"), nullptr;
    job.offsets = call.offsets.data;
  }
  I bytes = 0, elements = 0, far = 0;
  for (int k = 0; k < call.arrays; k++) {
    const Array& x = call.x[k];
    I n = 1;
    for (int i = 0; i < x.ndim; i++) n *= x.shape[i];
    elements += n, bytes += n * SIZES[x.dtype];
  }
  const long checks = PyLong_AsLong(args[9]);
  if (PyErr_Occurred()) return nullptr;
  if (call.absent || ((checks & 2) && !are_results_apart(call, args[0], args[1]))) Py_RETURN_FALSE;
  const Array* xs[] = {&call.x[0], &call.y[0], call.arrays > 1 ? &call.x[1] : nullptr,
                       call.arrays > 1 ? &call.y[1] : nullptr, offsets ? &call.offsets : nullptr};
  const Array* angles[] = {call.angles > 0 ? &call.angle[0] : nullptr,
                           call.angles > 1 ? &call.angle[1] : nullptr};
  collapse(job, call.axes, xs, angles, call.angles ? call.angle[0].ndim : 0);
  if (job.rows == 0) Py_RETURN_TRUE;
  if ((checks & 1) && job.lookup && exceeds_limit(job)) Py_RETURN_FALSE;
  const Dim& last = job.dims[job.ndim - 1];
  for (int k = 0; k < call.arrays; k++) {
    const I head = job.operand[k].x_head, token = last.steps[2 * k];
    far |= job.operand[k].heads > 1 && (head < 0 ? -head : head) > (token < 0 ? -token : token);
  }
  job.block =
      find_threshold(far && bytes >= find_threshold(FAR_BYTES) ? FAR_ANGLE_BYTES : ANGLE_BYTES) /
      (2 * job.pairs * (job.dtype == FLOAT64 ? 8 : 4));
  job.block = job.block < 1 ? 1 : job.block < last.length ? job.block : last.length;
  job.is_large = bytes >= find_threshold(LARGE_BYTES);
  if (checks & 4) return PyBytes_FromStringAndSize((const char*)&job, sizeof job);
  I threads = elements / find_threshold(THREAD_ELEMENTS);
  if (threads > 1) {
    Ref most(PyObject_CallFunctionObjArgs(limit, nullptr));
    const I n = most.object ? PyLong_AsLongLong(most) : 0;
    if (PyErr_Occurred()) return nullptr;
    threads = threads < n ? threads : n;
  }
  bool done;
  if (bytes > find_threshold(RELEASE_BYTES) || threads > 1) {
    PyThreadState* state = PyEval_SaveThread();
    done = run_parts(job, level->kernels, threads);
    PyEval_RestoreThread(state);
  } else {
    done = run_parts(job, level->kernels, 1);
  }
  if (!done) return PyErr_NoMemory();
  Py_RETURN_TRUE;
}

// set_up_numpy(ndarray, dtypes, probes): reads arrays by their fields from now on, if these agree
// with the attributes of probes, (array, address, number of dtype, shape, strides). Returns whether
// they do.
PyObject* set_up_numpy(PyObject*, PyObject* args) {
  PyObject *type, *dtypes, *probes;
  if (!PyArg_ParseTuple(args, "OO!O!", &type, &PyTuple_Type, &dtypes, &PyTuple_Type, &probes))
    return nullptr;
  if (PyTuple_Size(dtypes) != NO_DTYPE)
    return fail("set_up_numpy takes a dtype or None for each number"), nullptr;
  for (int i = 0; i < NO_DTYPE; i++) {
    Py_XDECREF(numpy_dtypes[i]);
    numpy_dtypes[i] =
        PyTuple_GetItem(dtypes, i) == Py_None ? nullptr : Py_NewRef(PyTuple_GetItem(dtypes, i));
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(probes); i++) {
    PyObject *array, *shape, *strides;
    long long address, dtype;
    if (!PyArg_ParseTuple(PyTuple_GetItem(probes, i), "OLLOO", &array, &address, &dtype, &shape,
                          &strides))
      return nullptr;
    Array x, y;
    int ndim;
    if (!read_ints(shape, y.shape, MAX_DIMS, &y.ndim) ||
        !read_ints(strides, y.strides, MAX_DIMS, &ndim))
      return nullptr;
    const NumpyArray* a = (const NumpyArray*)array;
    bool same =
        (PyObject*)Py_TYPE(array) == type && a->nd == y.ndim && a->data == (char*)(intptr_t)address;
    if (!same) Py_RETURN_FALSE;
    read_numpy(a, x);
    for (int j = 0; j < ndim; j++)
      same = same && x.shape[j] == y.shape[j] && x.strides[j] == y.strides[j];
    if (!same || x.dtype != dtype) Py_RETURN_FALSE;
  }
  Py_XDECREF(numpy_type);
  numpy_type = Py_NewRef(type);
  Py_RETURN_TRUE;
}

// set_up_torch(Tensor, Parameter, capsule): reads tensors by DLPack's functions from now on.
PyObject* set_up_torch(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter, *capsule;
  if (!PyArg_ParseTuple(args, "OOO", &tensor, &parameter, &capsule)) return nullptr;
  const DLExchange* exchange =
      (const DLExchange*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  if (!exchange) return nullptr;
  if (exchange->major != 1 || !exchange->view) Py_RETURN_FALSE;
  torch_exchange = exchange;
  Py_XDECREF(torch_types[0]), Py_XDECREF(torch_types[1]);
  torch_types[0] = Py_NewRef(tensor), torch_types[1] = Py_NewRef(parameter);
  Py_RETURN_TRUE;
}

// levels(): the instruction sets of this processor that kernels are compiled for, the best last.
PyObject* list_levels(PyObject*, PyObject*) {
  PyObject* names = PyTuple_New(count_levels());
  for (int i = 0; names && i < count_levels(); i++)
    PyTuple_SetItem(names, i, PyUnicode_FromString(LEVELS[i].name));
  return names;
}

// use_level(name): run kernels of this instruction set from now on. Tests compare them.
PyObject* use_level(PyObject*, PyObject* name) {
  for (int i = 0; i < count_levels(); i++)
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, LEVELS[i].name) == 0) {
      level = &LEVELS[i];
      Py_RETURN_NONE;
    }
  return fail("this processor lacks the instruction set"), nullptr;
}

// tune(name, value): change a threshold, and return its value until now.
PyObject* tune(PyObject*, PyObject* args) {
  const char* name;
  long long value;
  if (!PyArg_ParseTuple(args, "sL", &name, &value)) return nullptr;
  for (Threshold& threshold : thresholds)
    if (strcmp(threshold.name, name) == 0 && value > 0) {
      const I before = threshold.value;
      threshold.value = value;
      return PyLong_FromLongLong(before);
    }
  return fail("no threshold has this name, or value"), nullptr;
}

PyMethodDef methods[] = {
    {"rotate", (PyCFunction)(void*)rotate, METH_FASTCALL, nullptr},
    {"read_tables", read_tables, METH_VARARGS, nullptr},
    {"set_up_numpy", set_up_numpy, METH_VARARGS, nullptr},
    {"set_up_torch", set_up_torch, METH_VARARGS, nullptr},
    {"tune", tune, METH_VARARGS, nullptr},
    {"levels", list_levels, METH_NOARGS, nullptr},
    {"use_level", use_level, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  if (count_levels() == 0) {
    PyErr_SetString(PyExc_ImportError, "kernels need a processor with SSE4.2 (x86-64-v2)");
    return nullptr;
  }
  level = &LEVELS[count_levels() - 1];
  return PyModule_Create(&definition);
}
