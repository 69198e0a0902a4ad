"""Paths of numpy arrays: the native module, and chunks of numpy."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rope_xp._core.call import Call, CosSin
from rope_xp._core.path import Path
from rope_xp._rotation import portable
from rope_xp_backends.cpu import native

from . import host

CHUNK_BYTES = 1 << 18
"""Of x. Smaller chunks spend their time in calls, products of larger ones leave the cache."""


class Native(Path):
    """Kernels of the native module."""

    name = "native"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return native.decline_reason(call) or _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        outs = call.out or _allocate(call)
        for part in replace(call, out=outs).split(one_dtype=True):
            host.rotate(part, part.out or (), portable.for_kernel(call, part.angles[0]))
        return outs


class Chunked(Path):
    """The portable path in chunks of tokens, whose products stay in cache."""

    name = "chunked"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        call = replace(call, out=call.out or _allocate(call))
        if sum(x.nbytes for x in call.arrays) <= CHUNK_BYTES:
            return portable.run(call)
        for part in call.split(one_dtype=False):
            for chunk in _split_tokens(part):
                portable.run(chunk)
        return call.out or ()


def _split_tokens(call: Call) -> Iterator[Call]:
    """Yield calls on chunks of the tokens of each array of a call."""
    axis, tables = call.spec.axes.tokens, portable.cos_sin(call, call.angles[0])
    for i, (x, out) in enumerate(zip(call.arrays, call.out or (), strict=True)):
        n = x.shape[axis]
        step = max(CHUNK_BYTES * n // max(x.nbytes, 1), 1)
        for start in range(0, n, step):
            tokens = slice(start, start + step)
            index = *(slice(None),) * axis, tokens
            rows = [t if t.shape[-2] == 1 else t[..., tokens, :] for t in tables]
            operands = (x[index],), (CosSin(*rows),), (out[index],)
            yield Call(call.backend, *operands, call.spec, call.weights[i : i + 1])


def _allocate(call: Call) -> tuple[np.ndarray, ...]:
    """Return new arrays with the memory order of those of a call, but head_dim contiguous."""
    outs = [np.empty_like(x) for x in call.arrays]
    return tuple(x if x.strides[-1] == x.itemsize else np.empty(x.shape, x.dtype) for x in outs)


def _decline_subclasses(call: Call) -> str | None:
    for x in call.arrays if call.out is None else call.arrays + call.out:
        if type(x) not in (np.ndarray, np.memmap):
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
