"""Cached calls on tensors: a launch of a kernel, and how autograd records it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from rope_xp._core.call import Call, RelativeAngles, TableLookup
from rope_xp._core.library import DigitTables
from rope_xp._dispatch.call_cache import CallSignature

from . import op
from .cpu import LLVMLaunch
from .gpu import TritonLaunch, is_current
from .op_args import N_TENSORS, OpArgs, build_op_args
from .signature import Tensors

TensorLaunch: TypeAlias = LLVMLaunch | TritonLaunch


@dataclass(frozen=True, slots=True)
class AutogradLaunch:
    """Runs a launch that autograd records."""

    launch: TensorLaunch
    components: bool
    """Whether positions have a leading axis of components."""
    plain_args: tuple[Any, ...]
    """The operator's arguments after tensors."""

    def __call__(
        self, arrays: Tensors, _out: None, angle_inputs: Tensors, tables: DigitTables | None
    ) -> Tensors | None:
        """Return results."""
        if isinstance(self.launch, TritonLaunch) and not is_current(arrays[0]):
            return None

        def run(xs: Tensors) -> Tensors:
            return self.launch(xs, None, angle_inputs, tables)  # type: ignore[return-value]  # not None here

        saved = angle_inputs
        if tables is not None:
            if arrays[0].device.type != "cpu":  # a signature has copies of those on a CPU
                saved = tuple([row.clone() for row in angle_inputs])
            if self.components:
                saved = tuple([row.movedim(0, -1) for row in saved])
        return op.record_rotation(run, saved, partial(self._build_args, tables), arrays)

    def _build_args(self, tables: DigitTables | None, angle_inputs: Tensors) -> OpArgs:
        """Return the operator's arguments."""
        if tables is None:
            cos, sin = angle_inputs
            return OpArgs(None, None, cos, sin, None, None, None, *self.plain_args)
        positions, part = (*angle_inputs, None, None)[:2]
        low, middle, high, frequencies, component = tables
        frequencies = None if part is None else frequencies
        component = component if self.components else None
        return OpArgs(positions, part, low, middle, high, frequencies, component, *self.plain_args)


def specialize_launch(
    call: Call,
    signature: CallSignature,
    results: Tensors,
    prepare: Callable[[Tensors, Tensors, OpArgs], TensorLaunch | None],
) -> TensorLaunch | AutogradLaunch | None:
    """Return the launch of a signature, None where its calls take more than one launch."""
    arrays, source, angle_inputs = call.arrays, call.angles[0], signature.angle_inputs
    if isinstance(source, RelativeAngles) or arrays[0].dtype != arrays[-1].dtype:
        return None
    if any(x.stride(-1) != 1 for x in (*arrays, *results)):
        return None
    components = isinstance(source, TableLookup) and bool(angle_inputs) and source.components > 0
    if isinstance(source, TableLookup):
        if angle_inputs and angle_inputs[0].ndim == components:
            return None  # components of a single token, without an axis for it
        whole, part = (*angle_inputs, None, None)[:2]
        source = replace(source, whole=whole, part=part)
    needs_grad = {torch.is_grad_enabled() and x.requires_grad for x in arrays}
    if len(needs_grad) > 1:
        return None
    op_args = build_op_args(source, call.spec)
    launch = prepare(results, arrays, op_args)
    if launch is None or needs_grad == {False}:
        return launch
    return AutogradLaunch(launch, components, op_args[N_TENSORS:])
