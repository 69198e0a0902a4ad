// Functions of the C library that fail when a test says so, to be preloaded.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
void* __libc_malloc(size_t size);

size_t smallest_that_fails = SIZE_MAX;  // bytes of an allocation
int threads_a_start = 1;                // only one of so many threads starts; 0: none does
int threads;                            // that were asked for

void* malloc(size_t size) {
  if (size < smallest_that_fails) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  threads++;
  if (threads_a_start == 0 || threads % threads_a_start) return EAGAIN;
  auto create = (decltype(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
  return create(thread, attributes, run, argument);
}
}
