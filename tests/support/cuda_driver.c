// A stand-in for the CUDA driver where there is none: it takes any kernel, and records the arguments
// of the last launch. Triton's own launcher, which is compiled against it, runs as on a GPU. The
// calling thread is in the capture of a graph all the time.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 64, REGISTERS = 232448, MAX_THREADS = 1024 };
enum { RELAXED = 2, ERROR_STREAM_CAPTURE_UNSUPPORTED = 900 };

struct Launch {
  unsigned grid[3], block[3], shared;
  void *stream, *attributes;
  unsigned count;
};

unsigned launches, modules;
int32_t capture_mode;
struct Launch last;
int32_t sizes[MOST], arguments;
uint64_t values[MOST];

// How many arguments the next kernels have, and the bytes of each, which only the caller knows.
void expect(int32_t count, const int32_t *bytes) {
  arguments = count;
  memcpy(sizes, bytes, count * sizeof(*bytes));
}

int cuLaunchKernelEx(const struct Launch *launch, void *kernel, void **given, void **extra) {
  last = *launch;
  ++launches;
  memset(values, 0, sizeof(values));
  for (int i = 0; i < arguments; ++i) memcpy(&values[i], given[i], sizes[i]);
  return 0;
}

int cuModuleLoadData(void **module, const void *image) {
  if (capture_mode != RELAXED) return ERROR_STREAM_CAPTURE_UNSUPPORTED;
  ++modules;
  *module = &modules;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int32_t *mode) {
  const int32_t before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}

int cuPointerGetAttribute(uint64_t *value, int attribute, uint64_t pointer) {
  *value = pointer;
  return 0;
}

int cuFuncGetAttribute(int *value, int attribute, void *kernel) {
  *value = attribute == 0 ? MAX_THREADS : 0;
  return 0;
}

int cuModuleGetFunction(void **kernel, void *module, const char *name) {
  *kernel = module;
  return 0;
}

int cuCtxGetCurrent(void **context) {
  *context = &launches;
  return 0;
}

int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return *value = REGISTERS, 0; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuCtxGetLimit(size_t *value, int limit) { return *value = 0, 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return cuCtxGetCurrent(context); }
int cuFuncSetAttribute(void *kernel, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *kernel, int config) { return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuStreamIsCapturing(void *stream, int *status) { return *status = 1, 0; }
int cuOccupancyMaxActiveClusters(int *count, void *kernel, void *config) { return *count = 1, 0; }
int cuGetErrorString(int error, const char **text) { return *text = "", 0; }
