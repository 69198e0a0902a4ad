"""Paths of numpy arrays: kernels compiled by LLVM, and chunks of numpy."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rope_xp._core.call import Call, CosSin
from rope_xp._core.path import Path
from rope_xp._dispatch.call_cache import CallSignature
from rope_xp._rotation import portable
from rope_xp_backends.cpu import threads
from rope_xp_backends.cpu.launch import KERNELS, decline_rows, get_kernel_keys

from . import host

CHUNK_BYTES = 1 << 18
"""Of x. Smaller chunks spend their time in calls, products of larger ones leave the cache."""
CHUNKS_A_THREAD = 8
"""Fewer chunks do not repay a thread, as threads share Python's lock between calls of numpy."""


class LLVM(Path):
    """Kernels compiled by LLVM."""

    name = "llvm"
    makes_tables = normalizes = scatters = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return (
            KERNELS.decline_reason(*get_kernel_keys(call))
            or _decline_subclasses(call)
            or decline_rows(call)
        )

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        kernels = list(map(KERNELS.get, get_kernel_keys(call)))  # all of them, before any writes
        outs = call.out or _allocate(call)
        parts = replace(call, out=outs).split(one_dtype=True)
        for kernel, part in zip(kernels, parts, strict=True):
            host.rotate(kernel, part, part.out or (), portable.for_kernel(call, part.angles[0]))
        return outs

    def specialize(
        self, call: Call, signature: CallSignature, results: tuple[np.ndarray, ...]
    ) -> host.NumpyLaunch | None:
        arrays, strides = call.arrays, [y.strides for y in results]
        rows, weights = signature.angle_inputs, signature.weights
        if arrays[0].dtype != arrays[-1].dtype or not all(row.flags.aligned for row in rows):
            return None
        if not all(map(host.is_readable, (*arrays, *results, *weights))):
            return None
        contiguous = [np.empty(x.shape, x.dtype).strides for x in arrays] == strides
        allocates = contiguous or [np.empty_like(x).strides for x in arrays] == strides
        if call.out is None and not allocates:
            return None
        kernel, source = KERNELS.get(get_kernel_keys(call)[0]), call.angles[0]
        run = host.plan_launch(kernel, arrays, results, weights, rows, source, call.spec)  # type: ignore[arg-type]  # of no other kind
        return host.NumpyLaunch(run, contiguous)


class Chunked(Path):
    """The portable path in chunks of tokens, whose products stay in cache, on several threads."""

    name = "chunked"
    normalizes = True

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        return _decline_subclasses(call)

    def run(self, call: Call) -> tuple[np.ndarray, ...]:
        call = replace(call, out=call.out or _allocate(call))
        if sum(x.nbytes for x in call.arrays) <= CHUNK_BYTES:
            return portable.run(call)
        parts = call.split(one_dtype=False)
        chunks = [chunk for part in parts for chunk in _split_tokens(part)]

        def run_chunks(start: int, stop: int) -> None:
            for chunk in chunks[start:stop]:
                portable.run(chunk)

        most = min(threads.limit(), len(chunks) // CHUNKS_A_THREAD)
        threads.run_in_parts(run_chunks, len(chunks), most)
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
        if type(x) is not np.ndarray:
            return f"{type(x).__name__} is a class derived from ndarray"
    return None
