"""Arguments of torch's operator, as tensors and plain values."""

from typing import Any, NamedTuple

import torch

from rope_xp._arguments.axes import parse_axes
from rope_xp._core.call import UNKNOWN, Call, CosSin, NormSpec, RotationSpec, TableLookup
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Layout

from .library import Tensors


class OpArgs(NamedTuple):
    """The operator's arguments after the tensors to rotate."""

    positions: torch.Tensor | None
    part: torch.Tensor | None
    table: torch.Tensor
    table_2: torch.Tensor
    table_3: torch.Tensor | None
    frequencies: torch.Tensor | None
    components: torch.Tensor | None
    axes: str
    layout: Layout
    offset: int
    inverse: bool

    @property
    def tables(self) -> tuple[torch.Tensor | None, ...]:
        """The fields of DigitTables, where angles are looked up."""
        return self.table, self.table_2, self.table_3, self.frequencies, self.components

    @property
    def angle_inputs(self) -> tuple[torch.Tensor, ...]:
        """Positions and their fractions, or cos and sin."""
        inputs = (self.positions, self.part) if self.is_lookup else (self.table, self.table_2)
        return tuple([x for x in inputs if x is not None])

    @property
    def is_lookup(self) -> bool:
        """Whether cos and sin are looked up, and not given."""
        return self.table_3 is not None

    def with_angle_inputs(self, angle_inputs: Tensors) -> "OpArgs":
        """Return the same with other angle inputs, or with none."""
        first, second = (*angle_inputs, None, None)[:2]
        if self.is_lookup:
            return self._replace(positions=first, part=second)
        return self._replace(table=first, table_2=second)  # type: ignore[arg-type]  # none, only to save none

    def with_copied_positions(self, x: torch.Tensor) -> "OpArgs":
        """Return the same with copies of positions, as kernels for the device of x read them.

        The caller may overwrite positions before backward runs. Cos and sin are not copied, as
        autograd copies no operand of a product.
        """
        if not self.is_lookup or self.positions is None:
            return self
        dtype = torch.int64 if x.device.type == "cpu" else self.positions.dtype
        compute_dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        part = None if self.part is None else self.part.to(compute_dtype, copy=True)
        return self._replace(positions=self.positions.to(dtype, copy=True), part=part)

    @property
    def spec(self) -> RotationSpec:
        """The rotation of each tensor, but for angles."""
        components = self.table.shape[-1] * (1 if self.is_lookup else 2)
        return build_spec(self.axes, self.layout, self.offset, self.inverse, components)

    def source(self, tokens: int) -> TableLookup | CosSin:
        """Return the angle source, with the components of positions in front."""
        low, middle, high = self.table, self.table_2, self.table_3
        if high is None:
            return CosSin(low, middle)
        count, whole, part = 0, self.positions, self.part
        if self.components is not None and whole is not None:
            count, whole = whole.shape[-1], whole.movedim(-1, 0)
            part = None if part is None else part.movedim(-1, 0)
        tables = DigitTables(low, middle, high, self.frequencies, self.components)
        return TableLookup(tables, whole, part, low.device, tokens, UNKNOWN, count)


class OpNorm(NamedTuple):
    """The norm of an operator, and the weights that are given: one for each tensor, or none."""

    spec: NormSpec
    weights: tuple[torch.Tensor, ...]


N_TENSORS = OpArgs._fields.index("axes")
"""How many of the arguments are tensors; those that follow are plain values."""


def build_spec(
    axes: str,
    layout: Layout,
    offset: int,
    inverse: bool,
    rotary_dim: int,
    norm: NormSpec | None = None,
) -> RotationSpec:
    """Return the rotation that the plain arguments of an operator describe."""
    where = parse_axes(axes, len(axes), "x")
    return RotationSpec(where, layout, rotary_dim, offset, inverse, norm)


def build_op_args(source: TableLookup | CosSin, spec: RotationSpec) -> OpArgs:
    """Return the arguments of an operator."""
    rest = spec.axes.names, spec.layout, spec.rotary_offset, spec.inverse
    if isinstance(source, CosSin):
        return assemble_op_args(False, rest, None, (source.cos, source.sin))
    whole, part, components = source.whole, source.part, False
    if whole is not None and source.components:
        whole, components = whole.movedim(0, -1), True
        part = None if part is None else part.movedim(0, -1)
    return assemble_op_args(components, rest, source.tables, (whole, part))


def build_op_norm(call: Call) -> OpNorm | None:
    """Return the norm of an operator, None without one."""
    weights = tuple([w for w in call.weights if w is not None])
    return None if call.spec.norm is None else OpNorm(call.spec.norm, weights)


def assemble_op_args(
    components: bool, plain_args: tuple[Any, ...], tables: DigitTables | None, angle_inputs: Any
) -> OpArgs:
    """Return the arguments of an operator, with components of positions as their last axis."""
    first, second = (*angle_inputs, None, None)[:2]
    if tables is None:
        return OpArgs(None, None, first, second, None, None, None, *plain_args)
    frequencies = None if second is None else tables.frequencies
    component = tables.component if components else None
    digits = tables.low, tables.middle, tables.high
    return OpArgs(first, second, *digits, frequencies, component, *plain_args)
