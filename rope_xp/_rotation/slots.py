"""Rotated keys to slots of a cache, by operations on arrays."""

import math
from dataclasses import replace

from rope_xp._core.call import Call, Slots
from rope_xp._core.typing import Array


def without_slots(call: Call) -> Call:
    """Return the same rotation with a result for k, its last array."""
    if call.out is None:
        return replace(call, slots=None)
    return replace(
        call, slots=None, out=(*call.out[:-1], call.backend.xp.empty_like(call.arrays[-1]))
    )


def write_keys(call: Call, results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Write rotated keys to their slots, and return q and the cache, or a new one."""
    slots: Slots = call.slots  # type: ignore[assignment]  # of a call that has some
    backend, xp, tokens = call.backend, call.backend.xp, call.spec.axes.batch_tokens
    cache, (*q, k) = slots.cache, results
    order = (*tokens, *(i for i in range(len(k.shape)) if i not in tokens))
    rows = tuple([k.shape[i] for i in tokens])
    keys = xp.reshape(xp.permute_dims(k, order), (math.prod(rows), *cache.shape[-2:]))
    numbers = _number_through(call, slots, rows)
    if not backend.assigns_by_index:
        flat = xp.reshape(cache, (math.prod(cache.shape[:-2]), *keys.shape[1:]))
        return *q, xp.reshape(backend.replace_slots(flat, 0, numbers, keys), cache.shape)
    if slots.is_padded and keys.shape[0]:
        numbers, keys = _fill_padding(call, cache, numbers, keys)
    page = cache.shape[1]
    cache[(0, numbers) if cache.shape[0] == 1 else (numbers // page, numbers % page)] = keys
    return *q, cache


def _number_through(call: Call, slots: Slots, rows: tuple[int, ...]) -> Array:
    """Return slots with one axis, numbered through all sequences."""
    backend, xp, numbers = call.backend, call.backend.xp, slots.numbers
    if slots.of_sequences:
        batch, length = math.prod(rows[:-1]), slots.cache.shape[1]
        numbers = xp.broadcast_to(numbers, rows)
        starts = xp.reshape(backend.arange(batch, backend.device(slots.cache)), (*rows[:-1], 1))
        # One beyond its sequence is beyond the cache, and not in the next sequence.
        beyond = xp.full_like(numbers, batch * length)
        through = xp.where(numbers < length, numbers + starts * length, beyond)
        numbers = xp.where(numbers < 0, numbers, through)
    return xp.reshape(numbers, (-1,))


def _fill_padding(call: Call, cache: Array, numbers: Array, keys: Array) -> tuple[Array, Array]:
    """Repeat the highest slot and its key for negative ones, or slot 0 of the cache if all are."""
    backend, xp = call.backend, call.backend.xp
    index = backend.arange(numbers.shape[0], backend.device(numbers))
    index = xp.where(numbers < 0, xp.argmax(numbers), index)  # of fixed shape: nothing waits
    numbers, keys = xp.take(numbers, index, axis=0), xp.take(keys, index, axis=0)
    keys = xp.where(numbers[:, None, None] < 0, cache[0, 0], keys)
    return xp.where(numbers < 0, xp.zeros_like(numbers), numbers), keys
