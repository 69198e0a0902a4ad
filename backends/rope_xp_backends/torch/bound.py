"""Calls of a kind on tensors: memory for results, and a kernel; or the operator."""

from dataclasses import dataclass
from typing import Any

import torch

from rope_xp._contract.call import Call, Difference, Given, Lookup
from rope_xp._dispatch.bound import Asked, Run

from . import cpu, gpu, op, streams
from .arguments import How, Tensors, arguments
from .results import new, written


@dataclass(frozen=True)
class Bound:
    """What is left to do for a kind of call in CPU memory, where no gradient is needed.

    Parameters
    ----------
    run : cpu.Run
        What rotates.
    given : bool
        Whether cos and sin are given, which results must not be written over.
    """

    run: cpu.Run
    given: bool

    def __call__(self, asked: Asked) -> Tensors | None:
        """Return results, or None where memory may overlap."""
        out = asked.out
        if out is None:
            return self.run(None, asked.arrays, asked.rows)
        if not _apart(asked.arrays, out, asked.rows if self.given else ()):
            return None
        written(self.run(out, asked.arrays, asked.rows))
        return out


@dataclass(frozen=True)
class BoundOnGPU:
    """What is left to do for a kind of call on a GPU, where no gradient is needed.

    Parameters
    ----------
    prepared : gpu.Prepared
        The launch.
    given : bool
        Whether cos and sin are given, which results must not be written over.
    """

    prepared: gpu.Prepared
    given: bool

    def __call__(self, asked: Asked) -> Tensors | None:
        """Return results, or None where memory may overlap, or another device is current.

        None in a graph that is captured too: the long way keeps what a graph will read.
        """
        arrays, out, rows = asked.arrays, asked.out, asked.rows
        run, plan, rest = self.prepared
        if not gpu.is_current(arrays[0]) or streams.capturing(arrays[0].device):
            return None
        made = out
        if made is None:
            made = tuple([new(x) for x in arrays])
        elif not _apart(arrays, made, rows if self.given else ()):
            return None
        if self.given:
            rest = (*rows, *rest[2:])
        elif rows:
            rest = (*rest[:3], rows[0], *rest[4:])
        run(plan.grid, (arrays[0], made[0], arrays[-1], made[-1], *rest), plan.numbers)
        if out is not None:
            written(out)
        return made


@dataclass(frozen=True)
class Recorded:
    """What is left to do where autograd records it.

    Parameters
    ----------
    run : Run
        What rotates where it does not.
    how : How
        The operator's arguments, but for positions.
    """

    run: Run
    how: How

    def __call__(self, asked: Asked) -> Tensors | None:
        """Return results."""
        made: Tensors = _Rotate.apply(self, asked, *asked.arrays)
        return made


class _Rotate(torch.autograd.Function):
    """As that of op.py, where no transform is active and nothing is traced: it takes a third."""

    @staticmethod
    def forward(ctx: Any, bound: Recorded, asked: Asked, *_arrays: torch.Tensor) -> Tensors | None:
        ctx.save_for_backward(*asked.rows)
        ctx.set_materialize_grads(False)
        ctx.how = bound.how
        return bound.run(asked)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        how = _given(ctx.how, ctx.saved_tensors)
        return None, None, *op.gradients(grads, how._replace(inverse=not how.inverse))


def _given(how: How, rows: Tensors) -> How:
    """Return the arguments with positions, or with cos and sin."""
    if how.table_3 is None:
        return how._replace(table=rows[0], table_2=rows[1])
    if how.components is not None:
        rows = tuple([row.movedim(0, -1) for row in rows])
    if not rows:
        return how
    return how._replace(positions=rows[0], part=rows[1] if len(rows) > 1 else None)


def _apart(arrays: Tensors, out: Tensors, tables: Tensors) -> bool:
    """Return whether each result is its own array, or surely apart from all others."""
    own = [*(x for x, y in zip(arrays, out, strict=True) if x is not y), *tables]
    for i, y in enumerate(out):
        start, end = _span(y)
        for other in (*out[:i], *own):
            other_start, other_end = _span(other)
            if start < other_end and other_start < end:
                return False
    return True


def _span(x: torch.Tensor) -> tuple[int, int]:
    """Return between which addresses a tensor lies. torch has no negative strides."""
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return start, start + (last + 1) * x.element_size() if x.numel() else start


def bind(call: Call, asked: Asked, results: Tensors, *, on_gpu: bool) -> Run | None:
    """Return what runs calls like this one, None where more is to be done than a launch."""
    if len(call.angles) != 1 or call.arrays[0].dtype != call.arrays[-1].dtype:
        return None
    source, rows = call.angles[0], asked.rows
    if isinstance(source, Difference) or any(x.stride(-1) != 1 for x in (*call.arrays, *results)):
        return None
    if isinstance(source, Lookup) and rows and rows[0].ndim == (source.components > 0):
        rows = tuple([row[..., None] for row in rows])  # of a lone number
    how = arguments(source, call.turn)
    if isinstance(source, Lookup):
        how = _given(how, rows)
    needs = {torch.is_grad_enabled() and x.requires_grad for x in call.arrays}
    if len(needs) > 1 or (True in needs and rows is not asked.rows):
        return None
    run: Run | None
    if on_gpu:
        run = _bind_on_gpu(source, rows, how, call.arrays, results)
    else:
        run = _bind_on_cpu(source, how, call.arrays, results)
    return Recorded(run, how) if run is not None and True in needs else run


def _bind_on_cpu(source: Given | Lookup, how: How, arrays: Tensors, results: Tensors) -> Bound:
    run = cpu.prepare(results, arrays, how, cpu.rows_of(how, arrays[0].dtype))
    return Bound(run, isinstance(source, Given))


def _bind_on_gpu(
    source: Given | Lookup, rows: Tensors, how: How, arrays: Tensors, results: Tensors
) -> BoundOnGPU | None:
    given = isinstance(source, Given)
    if any(row.device != arrays[0].device for row in rows):
        return None  # they are moved there in each call
    if given and not gpu.read_in_place(how.table, how.table_2):
        return None  # they are copied in each call
    if not given and len(rows) > 1:
        return None  # the kernel looks up no fractions
    prepared = gpu.prepare(results, arrays, how)
    return None if prepared is None else BoundOnGPU(prepared, given)
