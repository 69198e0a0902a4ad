// Slots of a cache, to which keys go in place of a result of their own.
#include "call.h"

namespace {

const int FEW = 64;  // slots of which each is compared with all others

// Whether slots lie in the cache, and few of them differ. Those below zero may only be -1, padding.
bool fit(const Array& slots, I limit, bool of_sequences) {
  const int last = slots.ndim - 1;
  const I tokens = slots.shape[last], count = count_elements(slots);
  I seen[FEW];
  for (I row = 0; row < count; row += tokens) {
    const char* p = find_element(slots, last, row / tokens);
    bool fits = true;
    for (I i = 0; i < tokens; i++) {
      const I slot = read_integer(p + i * slots.strides[last], slots.dtype);
      fits &= slot >= -1 && slot < limit;
      if (count <= FEW) seen[row + i] = slot;
    }
    if (!fits) return false;
  }
  for (I i = 0; i < count && count <= FEW; i++) {
    bool again = false;
    for (I j = of_sequences ? i / tokens * tokens : 0; j < i; j++) again |= seen[j] == seen[i];
    if (again && seen[i] >= 0) return false;
  }
  return true;
}

}  // namespace

bool place_slots(Call& call, PyObject* names) {
  const int k = call.arrays - 1;
  const Array &x = call.x[k], &slots = call.slots;
  const Axes& axes = call.axes;
  Array& y = call.y[k];
  const Array cache = y;
  Job& job = call.job;
  Axes where;
  const bool unnamed = names == Py_None;
  if (unnamed && cache.ndim != 3 && cache.ndim != 4) return false;
  if (!name_axes(names, cache.ndim, where) || where.count > 2) return false;
  // Their first axis, of pages or sequences.
  const int first = (int)where.batch_tokens[0], axis = (int)where.batch_tokens[where.count - 1];
  bool paged = unnamed;
  if (!unnamed) paged = PyUnicode_AsUTF8AndSize(names, nullptr)[first] == 'p';
  const bool of_sequences = where.count == 2 && !paged;
  paged = where.count == 2 && paged;
  const I heads = axes.heads < 0 ? 1 : x.shape[axes.heads];
  I batch = 1;
  for (int i = 0; i < axes.count - 1; i++) batch *= x.shape[axes.batch_tokens[i]];
  if (cache.dtype != x.dtype || cache.shape[cache.ndim - 1] != x.shape[x.ndim - 1] ||
      heads != (where.heads < 0 ? 1 : cache.shape[where.heads]) ||
      (of_sequences && cache.shape[first] != batch))
    return false;
  // Those of one sequence may be those of all.
  const bool shared = slots.ndim == 1 && (of_sequences || batch == 1);
  bool fits =
      (slots.dtype == INT32 || slots.dtype == INT64) && (shared || slots.ndim == axes.count);
  for (int i = 0; fits && i < slots.ndim; i++)
    fits = slots.shape[i] == x.shape[axes.batch_tokens[axes.count - slots.ndim + i]];
  job.limit = cache.shape[axis] * (paged ? cache.shape[first] : 1);
  if (!fits || !fit(slots, job.limit, of_sequences)) return false;
  job.slots = slots.data, job.slot_dtype = slots.dtype;
  job.page = paged ? cache.shape[axis] : 0, job.page_step = paged ? cache.strides[first] : 0;
  job.slot_step = cache.strides[axis];
  y = x, y.data = cache.data;
  for (I& step : y.strides) step = 0;
  y.strides[y.ndim - 1] = cache.strides[cache.ndim - 1];
  if (axes.heads >= 0 && where.heads >= 0) y.strides[axes.heads] = cache.strides[where.heads];
  I step = of_sequences ? cache.strides[first] : 0;
  for (int i = axes.count - 2; i >= 0; step *= x.shape[axes.batch_tokens[i--]])
    y.strides[axes.batch_tokens[i]] = step;
  return true;
}
