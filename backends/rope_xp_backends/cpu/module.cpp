// The module: its functions, the instruction sets of its kernels, and what tests may change.
#include <string.h>

#include "call.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
extern "C" const Kernels rope_xp_kernels_2, rope_xp_kernels_3, rope_xp_kernels_4, rope_xp_kernels_5;
#else
extern "C" const Kernels rope_xp_kernels_0;
#endif

namespace {

// Sizes at which a call changes its ways. Tests change them by `tune`.
struct Threshold {
  const char* name;
  I value;
};
Threshold thresholds[THRESHOLDS] = {
    {"release_bytes", 1 << 15},  // larger arrays are rotated while other threads run Python
    {"thread_elements",
     1 << 21},  // of which a thread rotates at least so many, as starting one takes time
    {"table_rows", 1 << 12},       // of a rope, computed from small tables before all are
    {"large_bytes", 1 << 25},      // larger arrays leave the last cache before they are read again
    {"angle_bytes", 1 << 14},      // cos and sin of a block, which stay in the first cache,
    {"far_bytes", 1 << 22},        // but in larger arrays where heads lie far apart,
    {"far_angle_bytes", 1 << 21},  // have so many bytes, as long runs of tokens stream
};

// --- instruction sets ----------------------------------------------------------------------------

struct Level {
  const char* name;
  const Kernels* kernels;
};

#if defined(__x86_64__)
const Level LEVELS[] = {{"x86-64-v2", &rope_xp_kernels_2},
                        {"x86-64-v3", &rope_xp_kernels_3},
                        {"x86-64-v4", &rope_xp_kernels_4},
                        {"x86-64-v4, bf16", &rope_xp_kernels_5}};

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
  if (!has_bits(low, 0xe6) ||
      !has_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL))
    return 2;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_bits(a, 1 << 5) ? 4 : 3;  // AVX512_BF16
}
#else
const Level LEVELS[] = {{"baseline", &rope_xp_kernels_0}};
int count_levels() { return 1; }
#endif

const Level* level;

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
    {"rotate_by_rope", (PyCFunction)(void*)rotate_by_rope, METH_FASTCALL, nullptr},
    {"rotate_by_tables", (PyCFunction)(void*)rotate_by_tables, METH_FASTCALL, nullptr},
    {"look_up_angles", (PyCFunction)(void*)look_up_angles, METH_FASTCALL, nullptr},
    {"rotate", (PyCFunction)(void*)rotate, METH_FASTCALL, nullptr},
    {"multiply_angles", (PyCFunction)(void*)multiply_angles, METH_FASTCALL, nullptr},
    {"accumulate_angles", (PyCFunction)(void*)accumulate_angles, METH_FASTCALL, nullptr},
    {"sign_tensors", (PyCFunction)(void*)sign_tensors, METH_FASTCALL, nullptr},
    {"read_tables", read_tables, METH_VARARGS, nullptr},
    {"set_up_dtypes", set_up_dtypes, METH_O, nullptr},
    {"set_up_calls", set_up_calls, METH_VARARGS, nullptr},
    {"set_up_library", set_up_library, METH_VARARGS, nullptr},
    {"tune", tune, METH_VARARGS, nullptr},
    {"levels", list_levels, METH_NOARGS, nullptr},
    {"use_level", use_level, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

I find_threshold(int i) { return thresholds[i].value; }
const Kernels* find_kernels() { return level->kernels; }

PyMODINIT_FUNC PyInit__native() {
  if (count_levels() == 0) {
    PyErr_SetString(PyExc_ImportError, "kernels need a processor with SSE4.2 (x86-64-v2)");
    return nullptr;
  }
  level = &LEVELS[count_levels() - 1];
  return !intern_names() ? nullptr : PyModule_Create(&definition);
}
