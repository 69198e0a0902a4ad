"""Arguments of torch's operator, as tensors and plain values, and their checks."""

from typing import Any, NamedTuple, NoReturn

import torch

from rope_xp._arguments.axes import parse_axes
from rope_xp._core.caches import cached
from rope_xp._core.call import UNKNOWN, CosSin, NormSpec, RotationSpec, TableLookup
from rope_xp._core.dtypes import FLOATS, INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import can_broadcast, check_one_of
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Layout
from rope_xp._rotation.tables import table_shapes

from .library import NAMES, Tensors

_LAYOUTS = ("interleaved", "half", "interleaved_to_half")


class OpArgs(NamedTuple):
    """The operator's arguments after the tensors to rotate and their weights.

    The tables are (low, middle, high), or (cos, sin, None). Positions and their fractional parts
    are (batch..., tokens), or (batch..., tokens, components) where ``components``, (r/2,), holds
    the one that a frequency reads. Without a norm eps is None.
    """

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
    eps: float | None
    weight_offset: float
    over_slice: bool

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

    def transpose(self) -> "OpArgs":
        """Return the arguments that rotate gradients back."""
        return self._replace(inverse=not self.inverse, eps=None)

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
        """The rotation of each tensor, but for angles and weights."""
        rotary_dim = self.table.shape[-1] * (1 if self.is_lookup else 2)
        where, norm = parse_axes(self.axes, len(self.axes), "x"), None
        if self.eps is not None:
            norm = NormSpec(self.eps, self.weight_offset, False, self.over_slice)
        return RotationSpec(where, self.layout, rotary_dim, self.offset, self.inverse, norm)

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


N_TENSORS = OpArgs._fields.index("axes")
"""How many of the arguments are tensors; those that follow are plain values."""


def build_op_args(source: TableLookup | CosSin, spec: RotationSpec) -> OpArgs:
    """Return the arguments of an operator."""
    eps, weight_offset, _, over_slice = spec.norm or (None, 0.0, False, False)
    plain = spec.axes.names, spec.layout, spec.rotary_offset, spec.inverse
    rest: Any = (*plain, eps, weight_offset, over_slice)
    if isinstance(source, CosSin):
        return OpArgs(None, None, source.cos, source.sin, None, None, None, *rest)
    whole, part, tables, component = source.whole, source.part, source.tables, None
    if whole is not None and source.components:
        whole, component = whole.movedim(0, -1), tables.component
        part = None if part is None else part.movedim(0, -1)
    frequencies = None if part is None else tables.frequencies
    digits = tables.low, tables.middle, tables.high
    return OpArgs(whole, part, *digits, frequencies, component, *rest)


# --- checks: a graph, or anybody, may call the operator with other arguments ---------------------


def check_arguments(arrays: Tensors, op_args: OpArgs, weights: Tensors) -> None:
    """Check that a kernel can read and write these tensors, and reads nothing outside of them."""
    groups: Any = arrays, weights, op_args[:N_TENSORS]
    check_devices(*arrays, *weights, *op_args)
    if op_args.is_lookup and not all(x is None or x.is_contiguous() for x in op_args.tables):
        raise RopeError("a digit table of the operator is not contiguous; pass its contiguous()")
    xs, ws, tensors = (
        tuple([None if x is None else (NAMES.get(x.dtype), tuple(x.shape)) for x in group])
        for group in groups
    )
    _check_layouts(xs, ws, tensors, op_args[N_TENSORS:])


def check_devices(*arguments: Any) -> None:
    """Check that all tensors lie on one device."""
    devices = {x.device for x in arguments if isinstance(x, torch.Tensor)}
    if len(devices) > 1:
        raise RopeError(
            f"tensors lie on {' and '.join(map(str, devices))}; move them to one device"
        )


@cached(512)
def _check_layouts(arrays: Any, weights: Any, tensors: Any, plain: Any) -> None:
    """Check pairs (dtype, shape)."""
    (names, layout, offset, _, eps, _, _), (dtype, shape) = plain, arrays[0]
    axes = parse_axes(names, len(names), "x")
    check_one_of("layout", layout, _LAYOUTS)
    positions, part, table, table_2, table_3, frequencies, components = tensors
    pairs = (table[1] or (0,))[-1] // (1 if table_3 is None else 2)
    for other in arrays:
        is_like = len(other[1]) == len(axes.names) == len(shape) and all(
            n == m or i == axes.heads for i, (n, m) in enumerate(zip(shape, other[1], strict=True))
        )
        if other[0] != dtype or dtype not in FLOATS or not is_like:
            _reject("an array", other, f"like {(dtype, shape)}, but for heads")
    if not (pairs > 0 <= offset <= shape[-1] - 2 * pairs):
        _reject("the slice", (offset, 2 * pairs), f"inside head_dim={shape[-1]}")
    rows = tuple([shape[i] for i in axes.batch_tokens])
    compute_dtype = ("float64" if dtype == "float64" else "float32",)
    if table_3 is None:
        _check_rows("cos", table, FLOATS, rows, (pairs,))
        _check_rows("sin", table_2, FLOATS, rows, (pairs,))
    else:
        for digits, expected in zip(tensors[2:5], table_shapes(pairs, 0), strict=False):
            _check_rows("a digit table", digits, compute_dtype, (), expected)
        last = positions[1][-1:] if components and positions else ()
        _check_rows("positions", positions or part, INTEGERS, rows, last)
        _check_rows("components", components, ("int32",), (), (pairs,))
        if part is not None:
            _check_rows("part", part, FLOATS, (), positions[1])
            _check_rows("frequencies", frequencies or (None, ()), compute_dtype, (), (pairs,))
    kinds = [(weights[0][0], (n,)) for n in (shape[-1], 2 * pairs)] if weights else []
    fits = len(weights) in (0, len(arrays)) and (eps is not None or not weights)
    if not fits or {*weights} - {*kinds} or len({*weights}) > 1:
        _reject("weights", weights, f"of a norm, one for each array, of the shapes {kinds}")


def _check_rows(name: str, x: Any, dtypes: Any, rows: tuple[int, ...], last: Any) -> None:
    """Check that the axes of an array before its last ones broadcast to rows."""
    if x is None:
        return
    dtype, shape = x
    lead = shape[: len(shape) - len(last)]
    if dtype not in dtypes or not can_broadcast(lead, rows) or shape[len(lead) :] != last:
        _reject(name, x, f"numbers that broadcast to {(*rows, *last)}")


def _reject(name: str, got: object, expected: object) -> NoReturn:
    raise RopeError(f"{name} of the operator is {got}; it must be {expected}")
