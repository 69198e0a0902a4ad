// Reads arrays by the fields of ndarray and by DLPack, or by a function of Python.
#include "arrays.h"

#include <string.h>

bool fail(const char* message) {
  PyErr_SetString(PyExc_ValueError, message);
  return false;
}

bool is_empty(const Array& x) {
  for (int i = 0; i < x.ndim; i++)
    if (x.shape[i] == 0) return true;
  return false;
}

I count_elements(const Array& x) {
  I n = 1;
  for (int i = 0; i < x.ndim; i++) n *= x.shape[i];
  return n;
}

bool is_contiguous(const Array& x) {
  I step = SIZES[x.dtype];
  for (int i = x.ndim - 1; i >= 0; step *= x.shape[i--])
    if (x.shape[i] != 1 && x.strides[i] != step) return false;
  return true;
}

void set_contiguous(Array& x, char* data) {
  I step = SIZES[x.dtype];
  x.data = data;
  for (int i = x.ndim - 1; i >= 0; step *= x.shape[i--]) x.strides[i] = step;
}

namespace {

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

PyObject *numpy_types[2], *numpy_dtypes[NO_DTYPE], *torch_types[2];
bool fields_agree;                 // else numpy's arrays are described
const DLExchange* torch_exchange;  // null: tensors are

const Device CPU = {1, 0};
const int ALIGNED = 0x100, WRITEABLE = 0x400;  // of numpy's flags
const unsigned NUMPY_ABI = 0x2000000;

void read_numpy(const NumpyArray* a, Array& x) {
  x.data = a->data, x.ndim = a->nd, x.dtype = NO_DTYPE, x.writeable = a->flags & WRITEABLE;
  for (int i = 0; i < NO_DTYPE; i++)
    if (a->descr == numpy_dtypes[i]) x.dtype = (Dtype)i;
  for (int i = 0; i < x.ndim && i < MAX_DIMS; i++)
    x.shape[i] = a->dimensions[i], x.strides[i] = a->strides[i];
}

bool read_torch(PyObject* object, Array& x, Device& device) {
  DLTensor t;
  if (torch_exchange->view(object, &t)) {
    PyErr_Clear();
    return false;
  }
  x.data = (char*)t.data + t.byte_offset, x.ndim = t.ndim, x.dtype = NO_DTYPE, x.writeable = true;
  device = {t.device_type, t.device_id};
  if (t.code == 2)
    x.dtype = t.bits == 16 ? FLOAT16 : t.bits == 32 ? FLOAT32 : t.bits == 64 ? FLOAT64 : NO_DTYPE;
  if (t.code == 4 && t.bits == 16) x.dtype = BFLOAT16;
  if (t.code == 0) x.dtype = t.bits == 32 ? INT32 : t.bits == 64 ? INT64 : NO_DTYPE;
  for (int i = 0; i < x.ndim && i < MAX_DIMS; i++)
    x.shape[i] = t.shape[i], x.strides[i] = t.strides[i] * (t.bits / 8);
  return true;
}

}  // namespace

PyObject* functions[3][FUNCTIONS];

Library find_library(PyObject* object) {
  PyObject* type = (PyObject*)Py_TYPE(object);
  if (type == numpy_types[0] || type == numpy_types[1]) return NUMPY;
  return type == torch_types[0] || type == torch_types[1] ? TORCH : OTHER;
}

bool read_ints(PyObject* sequence, I* to, int most, int* count) {
  Ref items(PySequence_Tuple(sequence));
  if (!items.object) return false;
  *count = (int)PyTuple_Size(items);
  for (int i = 0; i < *count && i < most; i++) to[i] = PyLong_AsLongLong(PyTuple_GetItem(items, i));
  return !PyErr_Occurred();
}

// Reads what describe(x) returns, see arrays.h. It may set an error.
static bool read_described(PyObject* object, Library library, Array& x) {
  PyObject* describe = functions[library][DESCRIBE];
  if (!describe) return fail("an array of a library that is not set up");
  Ref fields(PyObject_CallFunctionObjArgs(describe, object, nullptr));
  if (!fields.object) return false;
  long long address, dtype;
  PyObject *shape, *strides;
  int ndim = 0, writeable;
  if (!PyArg_ParseTuple(fields, "LLOOp", &address, &dtype, &shape, &strides, &writeable))
    return false;
  x.data = (char*)(intptr_t)address, x.writeable = writeable;
  x.dtype = dtype < 0 || dtype > NO_DTYPE ? NO_DTYPE : (Dtype)dtype;
  if (!read_ints(shape, x.shape, MAX_DIMS, &x.ndim) ||
      !read_ints(strides, x.strides, MAX_DIMS, &ndim))
    return false;
  if (ndim != x.ndim) x.dtype = NO_DTYPE;
  return true;
}

bool read_fields(PyObject* object, Library library, Array& x, Device* device) {
  bool known = false;
  Device own = CPU;
  if (library == NUMPY && fields_agree) {
    read_numpy((const NumpyArray*)object, x);
    if (!(((const NumpyArray*)object)->flags & ALIGNED)) return false;
    known = x.dtype != NO_DTYPE;  // bfloat16 may be a dtype that came later
  } else if (library == TORCH && torch_exchange) {
    if (!read_torch(object, x, own) || (!device && own.type != CPU.type)) return false;
    known = true;
  }
  if (!known && (library == OTHER || !read_described(object, library, x))) return false;
  if (x.dtype == NO_DTYPE || x.ndim > MAX_DIMS) return false;
  x.extent = measure(x, INT64_MAX);
  if (device) *device = own;
  return true;
}

bool read_array(PyObject* object, Array& x, bool& absent) {
  const Library library = find_library(object);
  if (!read_fields(object, library, x)) {
    if (PyErr_Occurred() || !read_described(object, library == NUMPY ? NUMPY : TORCH, x))
      return false;
    if (x.dtype == NO_DTYPE || x.ndim > MAX_DIMS)
      return fail("an array has a dtype or axes that kernels do not read");
    x.extent = measure(x, INT64_MAX);
  }
  absent = absent || (!x.data && !is_empty(x));
  return true;
}

// --- overlap -------------------------------------------------------------------------------------

static I floor_mod(I a, I b) { return (a % b + b) % b; }

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

bool may_overlap_itself(const Array& x) {
  I steps[MAX_DIMS], lengths[MAX_DIMS];  // of axes, the closest elements first
  int n = 0;
  for (int i = 0; i < x.ndim; i++) {
    if (x.shape[i] <= 1) continue;
    const I step = x.strides[i] < 0 ? -x.strides[i] : x.strides[i];
    int j = n++;
    for (; j > 0 && steps[j - 1] > step; j--) steps[j] = steps[j - 1], lengths[j] = lengths[j - 1];
    steps[j] = step, lengths[j] = x.shape[i];
  }
  I below = SIZES[x.dtype];  // bytes that axes of smaller steps span
  for (int i = 0; i < n; below += steps[i] * (lengths[i] - 1), i++)
    if (steps[i] < below) return true;
  return false;
}

// --- set up --------------------------------------------------------------------------------------
void replace(PyObject*& held, PyObject* by) {
  PyObject* before = held;
  held = Py_NewRef(by);
  Py_XDECREF(before);
}

// set_up_dtypes(dtypes): the dtype of numpy, or None, for each number.
PyObject* set_up_dtypes(PyObject*, PyObject* dtypes) {
  if (!PyTuple_Check(dtypes) || PyTuple_Size(dtypes) != NO_DTYPE)
    return fail("set_up_dtypes takes a dtype or None for each number"), nullptr;
  for (int i = 0; i < NO_DTYPE; i++) replace(numpy_dtypes[i], PyTuple_GetItem(dtypes, i));
  Py_RETURN_NONE;
}

// set_up_library(number, type, other_type, capsule, functions): reads arrays of these types from
// now on, by their fields, or where these are unknown by describe(x). Returns by which. capsule:
// that of numpy's C API or DLPack's functions for torch; None where there is none.
PyObject* set_up_library(PyObject*, PyObject* args) {
  int library;
  PyObject *types[2], *capsule, *given;
  if (!PyArg_ParseTuple(args, "iOOOO!", &library, &types[0], &types[1], &capsule, &PyTuple_Type,
                        &given))
    return nullptr;
  const Py_ssize_t count = PyTuple_Size(given);
  if ((library != NUMPY && library != TORCH) ||
      (count != EMPTY_LIKE && count != (library == TORCH ? FUNCTIONS : ALLOCATE_LARGE)))
    return fail("functions do not fit a library"), nullptr;
  const bool is_torch = library == TORCH, has_fields = capsule != Py_None;
  const char* name = is_torch ? "dlpack_exchange_api" : nullptr;
  void* fields = has_fields ? PyCapsule_GetPointer(capsule, name) : nullptr;
  if (has_fields && !fields) return nullptr;
  if (is_torch) {
    torch_exchange = (const DLExchange*)fields;
    if (fields && (torch_exchange->major != 1 || !torch_exchange->view)) torch_exchange = nullptr;
  } else {  // whose first function returns the version of its ABI
    fields_agree = fields && ((unsigned (**)())fields)[0]() == NUMPY_ABI;
  }
  for (int i = 0; i < 2; i++) replace(is_torch ? torch_types[i] : numpy_types[i], types[i]);
  for (Py_ssize_t i = 0; i < count; i++) replace(functions[library][i], PyTuple_GetItem(given, i));
  return PyBool_FromLong(is_torch ? torch_exchange != nullptr : fields_agree);
}
