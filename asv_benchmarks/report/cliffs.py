"""Cases that are less than half as fast as their neighbour, byte for byte.

    taskset -c 0 python -m asv_benchmarks.report.cliffs

prints every case for numpy and torch, and names the cliffs. A case and its neighbour rotate as many
bytes, in nine turns, on one core: threads that start and stop would hide a cliff.
Neighbours differ in one thing alone. One head has a second one, the usual formula, as its angles
cost as much as its rotation and no arrangement changes that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import rope_xp
from asv_benchmarks.shared import common
from rope_xp._bench import clock, inputs
from rope_xp._bench.clock import Spread
from rope_xp._bench.inputs import CannotMeasure
from rope_xp._bench.targets import Target
from rope_xp._core.typing import Array, Namespace

ELEMENTS = 1 << 12 if common.QUICK else 1 << 20
LIBRARIES = ("numpy:cpu", "torch:cpu")
CLIFF = 0.5
"""Times as fast as a neighbour."""


@dataclass(frozen=True)
class Arranged:
    """How an array lies and what its positions are. Defaults are those of most models."""

    shape: tuple[int, ...] = (1, -1, 16, 64)
    """-1: as many as make ELEMENTS."""
    axes: str | None = None
    dtype: str = "float32"
    lies: Callable[[Namespace, Array], Array] | None = None
    positions: str = "integers"
    layout: str = "half"
    rotary_dim: int | None = None
    rotary_offset: int = 0


def _fortran(xp: Namespace, x: Array) -> Array:
    back = tuple(range(x.ndim))[::-1]
    turned = xp.permute_dims(x, back)
    return xp.permute_dims(xp.reshape(xp.reshape(turned, (-1,)), turned.shape), back)


def _stepped(xp: Namespace, x: Array) -> Array:
    return xp.stack([x, x], axis=-1)[..., 0]


def _slice_of_fused(xp: Namespace, x: Array) -> Array:
    return xp.concat([x, x, x], axis=-2)[..., : x.shape[-2], :]


def _big_endian(_: Namespace, x: Array) -> Array:
    return _numpy_only(x).astype(x.dtype.newbyteorder(">"))


def _reversed_tokens(_: Namespace, x: Array) -> Array:
    return _numpy_only(x)[:, ::-1]


def _numpy_only(x: Array) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x
    msg = "arrays like this exist in numpy alone"
    raise CannotMeasure(msg)


MANY, FEW, ONE = Arranged(), Arranged((1, -1, 4, 64)), Arranged((1, -1, 1, 64))
WIDE = Arranged(dtype="float64")
CASES: dict[str, tuple[Arranged, Arranged]] = {
    "8 heads": (Arranged((1, -1, 8, 64)), MANY),
    "128 heads": (Arranged((1, -1, 128, 64)), MANY),
    "4 heads": (FEW, MANY),
    "1 head": (ONE, FEW),
    **{f"16 heads of {d}": (Arranged((1, -1, 16, d)), MANY) for d in (16, 32, 80, 128, 256, 1024)},
    "16 heads of 8": (Arranged((1, -1, 16, 8)), Arranged((1, -1, 16, 16))),
    "16 heads of 2": (Arranged((1, -1, 16, 2)), Arranged((1, -1, 16, 8))),
    "1 head of 128": (Arranged((1, -1, 1, 128)), ONE),
    "1 head of 16": (Arranged((1, -1, 1, 16)), ONE),
    "1 head of 2": (Arranged((1, -1, 1, 2)), Arranged((1, -1, 1, 16))),
    "2 axes": (Arranged((-1, 64)), ONE),
    "3 axes": (Arranged((-1, 16, 64)), MANY),
    "2 batch axes": (Arranged((256, 2, -1, 4, 64), "abshd"), Arranged((512, -1, 4, 64))),
    "2 batch axes, one token": (Arranged((-1, 2, 1, 4, 64), "abshd"), Arranged((-1, 1, 4, 64))),
    "tokens behind heads": (Arranged((1, 16, -1, 64), "bhsd"), MANY),
    "tokens first": (Arranged((-1, 2, 16, 64), "sbhd"), Arranged((2, -1, 16, 64))),
    "slice of fused": (Arranged(lies=_slice_of_fused), MANY),
    "tokens reversed": (Arranged(lies=_reversed_tokens), MANY),
    "Fortran order": (Arranged(lies=_fortran), MANY),
    "stepped head_dim": (Arranged(lies=_stepped), MANY),
    "byte order": (Arranged(lies=_big_endian), MANY),
    "positions counted": (Arranged(positions="counted"), MANY),
    "positions of each batch": (
        Arranged((8, -1, 16, 64), positions="batch"),
        Arranged((8, -1, 16, 64)),
    ),
    "positions of 2**30": (Arranged(positions="far"), MANY),
    "float positions": (Arranged(positions="floats"), MANY),
    "float positions, 1 head": (Arranged((1, -1, 1, 64), positions="floats"), ONE),
    "M-RoPE": (Arranged(positions="components"), MANY),
    "M-RoPE, 1 head": (Arranged((1, -1, 1, 64), positions="components"), ONE),
    "M-RoPE, components mixed": (Arranged(positions="components mixed"), MANY),
    "M-RoPE, components mixed, 1 head": (
        Arranged((1, -1, 1, 64), positions="components mixed"),
        ONE,
    ),
    "M-RoPE of floats": (Arranged(positions="float components"), MANY),
    "float16": (Arranged(dtype="float16"), MANY),
    "bfloat16": (Arranged(dtype="bfloat16"), MANY),
    "float64": (WIDE, MANY),
    "float64, 1 head": (Arranged((1, -1, 1, 64), dtype="float64"), ONE),
    "float64, float positions": (Arranged(dtype="float64", positions="floats"), WIDE),
    "interleaved": (Arranged(layout="interleaved"), MANY),
    "interleaved_to_half": (Arranged(layout="interleaved_to_half"), MANY),
    "rotary_dim 32": (Arranged(rotary_dim=32), MANY),
    "rotary_dim 62, offset 1": (Arranged(rotary_dim=62, rotary_offset=1), MANY),
}
FORMULA = {
    f"{shape} against the formula": Arranged(shape)
    for shape in ((1, 8192, 1, 64), (1, 8192, 1, 16), (1, 8192, 1, 2), (1, 131072, 1, 2))
}


READS = {
    "components mixed": (0, 1, 2) * 10 + (0, 0),
    "components": (0,) * 8 + (1,) * 12 + (2,) * 12,
}
"""Which component of positions each of 32 frequencies reads."""


def _arguments(target: Target, how: Arranged) -> tuple[Array, Array | None, rope_xp.RoPE]:
    known = abs(math.prod(how.shape))
    shape = [max(ELEMENTS // known, 1) if n == -1 else n for n in how.shape]
    host = np.random.default_rng(0).standard_normal(shape, np.float32)
    x = target.put(host.astype(inputs.numpy_dtype(how.dtype)))
    x = how.lies(target.backend.xp, x) if how.lies else x
    axes = how.axes or {2: "sd", 3: "shd", 4: "bshd"}[len(shape)]
    batch = [n for n, name in zip(shape, axes, strict=True) if name not in "shd"]
    positions = _positions(how.positions, shape[axes.index("s")], batch)
    rope = rope_xp.RoPE(
        layout=how.layout,
        rotary_dim=how.rotary_dim,
        rotary_offset=how.rotary_offset,
        position_axes=next((axes for kind, axes in READS.items() if kind in how.positions), None),
    )
    return x, positions if positions is None else target.put(positions), rope


def _positions(kind: str, tokens: int, batch: list[int]) -> np.ndarray | None:
    counted = np.arange(tokens)
    if kind == "counted":
        return None
    if kind == "batch":
        return np.zeros((*batch, 1), np.int64) + counted
    far = counted + (1 << 30)
    floats = (counted + 0.25).astype(np.float32)
    components = np.stack([counted, counted // 7, counted % 7])
    if kind == "float components":
        return (components + 0.25).astype(np.float32)
    return {"integers": counted, "far": far, "floats": floats}.get(kind, components)


def times_as_fast(name: str, ours: Arranged, other: Arranged | None) -> Spread:
    """Return how many times as fast a case is, byte for byte, as another, or as the formula."""
    target = inputs.find(name)
    x, positions, rope = _arguments(target, ours)

    def rotate() -> tuple[Array, ...]:
        return (rope.rotate(x, positions, axes=ours.axes),)

    if other is None:
        xp = target.backend.xp

        def formula() -> tuple[Array, ...]:
            return (common.rotate_usual(xp, x, positions, rope.base),)

        return clock.times_as_fast(*_seconds(target, rotate, formula))
    y, other_positions, other_rope = _arguments(target, other)

    def neighbour() -> tuple[Array, ...]:
        return (other_rope.rotate(y, other_positions, axes=other.axes),)

    mine, theirs = _seconds(target, rotate, neighbour)
    share = x.nbytes / y.nbytes
    return clock.times_as_fast([seconds / share for seconds in mine], theirs)


def _seconds(target: Target, *actions: clock.Action) -> list[list[float]]:
    return clock.turns_of_seconds(target, common.REPEAT, *actions)


def table() -> str:
    """Return the ratios as Markdown."""
    rows = {**CASES, **{name: (ours, None) for name, ours in FORMULA.items()}}
    lines = [f"| times as fast | {' | '.join(LIBRARIES)} |", "|---" * (len(LIBRARIES) + 1) + "|"]
    for text, (ours, other) in rows.items():
        limit = CLIFF if other else 1.0
        cells = [_cell(name, ours, other, limit) for name in LIBRARIES]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(name: str, ours: Arranged, other: Arranged | None, limit: float) -> str:
    try:
        ratio = times_as_fast(name, ours, other)
    except CannotMeasure:
        return "-"
    return f"**{ratio}**" if ratio.median < limit else str(ratio)


if __name__ == "__main__":
    print(table(), end="")
