"""Cached calls on tensors: a launch of a kernel, and how autograd records it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from rope_xp._contract.call import Call, RelativeAngles, TableLookup
from rope_xp._contract.library import DigitTables
from rope_xp._dispatch.call_cache import CallSignature

from . import cpu, gpu, op
from .arguments import OpArgs, arguments
from .signature import Tensors

Launch: TypeAlias = cpu.KernelLaunch | gpu.KernelLaunch


@dataclass(frozen=True, slots=True)
class AutogradLaunch:
    """Runs a launch that autograd records.

    Parameters
    ----------
    launch : Launch
        Runs where autograd does not record.
    components : bool
        Whether positions have a leading axis of components.
    spec : tuple
        The operator's arguments after tensors.
    """

    launch: Launch
    components: bool
    spec: tuple[Any, ...]

    def __call__(
        self, arrays: Tensors, _out: None, rows: Tensors, tables: DigitTables | None
    ) -> Tensors | None:
        """Return results."""
        if isinstance(self.launch, gpu.KernelLaunch) and not gpu.is_current(arrays[0]):
            return None

        def run(xs: Tensors) -> Tensors:
            return self.launch(xs, None, rows, tables)  # type: ignore[return-value]  # not None here

        saved = rows
        if tables is not None:
            if arrays[0].device.type != "cpu":  # a signature has copies of those on a CPU
                saved = tuple([row.clone() for row in rows])
            if self.components:
                saved = tuple([row.movedim(0, -1) for row in saved])
        return op.recorded(run, saved, partial(self._how, tables), arrays)

    def _how(self, tables: DigitTables | None, rows: Tensors) -> OpArgs:
        """Return the operator's arguments."""
        if tables is None:
            cos, sin = rows
            return OpArgs(None, None, cos, sin, None, None, None, *self.spec)
        positions, part = (*rows, None, None)[:2]
        low, middle, high, frequencies, component = tables
        frequencies = None if part is None else frequencies
        component = component if self.components else None
        return OpArgs(positions, part, low, middle, high, frequencies, component, *self.spec)


def specialize(
    call: Call,
    signature: CallSignature,
    results: Tensors,
    prepare: Callable[[Tensors, Tensors, OpArgs], Launch | None],
) -> Launch | AutogradLaunch | None:
    """Return what launches a kernel on calls of a signature, None where it takes more than that."""
    arrays, source, rows = call.arrays, call.angles[0], signature.rows
    if isinstance(source, RelativeAngles) or arrays[0].dtype != arrays[-1].dtype:
        return None
    if any(x.stride(-1) != 1 for x in (*arrays, *results)):
        return None
    components = isinstance(source, TableLookup) and bool(rows) and source.components > 0
    if isinstance(source, TableLookup):
        if rows and rows[0].ndim == components:
            return None  # components of a single token, without an axis for it
        source = replace(source, whole=(*rows, None)[0], part=(*rows, None, None)[1])
    needs_grad = {torch.is_grad_enabled() and x.requires_grad for x in arrays}
    if len(needs_grad) > 1:
        return None
    how = arguments(source, call.turn)
    launch = prepare(results, arrays, how)
    if launch is None or needs_grad == {False}:
        return launch
    return AutogradLaunch(launch, components, how[OpArgs._fields.index("axes") :])
