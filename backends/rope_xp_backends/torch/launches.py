"""Cached calls on tensors: a launch of a kernel, and how autograd records it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from rope_xp._contract.call import Call, Difference, Given, Lookup, Turn
from rope_xp._contract.library import Digits
from rope_xp._dispatch.call_cache import CallSignature

from . import cpu, gpu, op
from .arguments import How, Tensors, arguments

Launch: TypeAlias = cpu.KernelLaunch | gpu.KernelLaunch


@dataclass(frozen=True, slots=True)
class AutogradLaunch:
    """Runs a launch that autograd records.

    Parameters
    ----------
    launch : Launch
        Runs where autograd does not record.
    turn : Turn
        What is done to each tensor.
    known : tuple
        Device, tokens, range and components of a lookup; None where cos and sin are given.
    """

    launch: Launch
    turn: Turn
    known: tuple[object, ...] | None

    def __call__(
        self, arrays: Tensors, _out: None, rows: Tensors, tables: Digits | None
    ) -> Tensors | None:
        """Return results."""
        source: Given | Lookup
        if self.known is None:
            source = Given(*rows)
        else:
            source = Lookup(tables, *(*rows, None, None)[:2], *self.known)  # type: ignore[arg-type]  # as in the call it was made from
        how = arguments(source, self.turn)
        if rows and arrays[0].device.type != "cpu":  # a signature has copies of those on a CPU
            how = how.with_own_rows(arrays[0])
        return op.recorded(lambda xs: self.launch(xs, None, rows, tables), how, arrays)  # type: ignore[arg-type,return-value]  # None is returned before anything runs


def specialize(
    call: Call,
    signature: CallSignature,
    results: Tensors,
    prepare: Callable[[Tensors, Tensors, How], Launch | None],
) -> Launch | AutogradLaunch | None:
    """Return what launches a kernel on calls of a signature, None where it takes more than that."""
    arrays, source, rows = call.arrays, call.angles[0], signature.rows
    if isinstance(source, Difference) or arrays[0].dtype != arrays[-1].dtype:
        return None
    if any(x.stride(-1) != 1 for x in (*arrays, *results)):
        return None
    known = None
    if isinstance(source, Lookup):
        if rows and rows[0].ndim == (source.components > 0):
            return None  # components of a single token, without an axis for it
        known = source.device, source.tokens, source.reach, source.components
        source = Lookup(source.tables, *(*rows, None, None)[:2], *known)
    needs_grad = {torch.is_grad_enabled() and x.requires_grad for x in arrays}
    if len(needs_grad) > 1:
        return None
    launch = prepare(results, arrays, arguments(source, call.turn))
    if launch is None or needs_grad == {False}:
        return launch
    return AutogradLaunch(launch, call.turn, known)
