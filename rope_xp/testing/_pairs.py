"""From the matrix of a linear map at a few positions to the pairs that it turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Layout
from rope_xp.testing._box import EPS, Box, Floats, Refused

# Components that are not coupled are not so to the bit in any implementation that multiplies.
_COUPLED = 1e-7
_SETS = ([0, 1, 2, 7, 1000, 65536], [0, 1, 2, 7, 100, 1000], [0, 1, 2, 3, 5, 7])
"""Slow pairs are seen at large positions, which not every function takes."""


@dataclass(frozen=True)
class Pairs:
    """Which components turn, in the order of their frequencies."""

    layout: Layout
    rotary_dim: int
    rotary_offset: int
    ins: tuple[tuple[int, int], ...]
    outs: tuple[tuple[int, int], ...]
    places: tuple[int, ...]
    """The index of each pair's frequency; those of pairs that stand still are missing."""
    standing: float
    """What components that do not turn are multiplied by, beside the slice."""

    @property
    def slice(self) -> tuple[Layout, int, int]:
        """What two arrays that turn alike have in common, beside angles."""
        return self.layout, self.rotary_dim, self.rotary_offset


def matrices(box: Box) -> tuple[Floats, list[int]]:
    """Return what each array is multiplied by, (arrays, tokens, heads, d, heads, d), and where.

    Raises
    ------
    RopeError
        If the function is not linear in the array.
    """
    n = box.heads * box.head_dim
    units = np.eye(n).reshape(n, box.heads, box.head_dim)
    for positions in _SETS:
        try:
            found = np.stack(box.turned(units, positions))
        except Refused as refused:
            why = str(refused)
            continue
        if not np.isfinite(found).all():  # as of positions in float16; told of later
            why = "its results are not finite"
            continue
        found = np.moveaxis(found, 1, -1)  # (arrays, heads, tokens, d, n)
        found = np.moveaxis(found, 2, 1)
        made = found.reshape(*found.shape[:-1], box.heads, box.head_dim)
        _check_linear(box, made, positions)
        return made, positions
    raise RopeError(f"function takes positions 0 to 7 in order alone; of others it says: {why}")


def _check_linear(box: Box, made: Floats, positions: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, box.heads, box.head_dim)).astype(np.float32).astype(np.float64)
    # Values that every dtype holds, so that nothing but the function rounds.
    x = np.round(x * 4) / 4
    for name, found, matrix in zip("qkv", box.turned(x, positions), made, strict=False):
        expected = np.einsum("shdij,ij->hsd", matrix, x[0])
        size = np.abs(expected).max() + 1.0
        if not np.isfinite(found).all():
            raise RopeError(f"function is no rotation: {name} is not finite where it is turned")
        # Sums of two products: a matrix of bfloat16 is exact in float32.
        if np.abs(found[0] - expected).max() > max(1e-5, 16 * EPS[box.dtype], 0.02) * size:
            raise RopeError(
                f"function is no rotation: it is not linear in {name}, as if it also normalised"
            )


def find(matrix: Floats, name: str, eps: float) -> Pairs | None:
    """Return the pairs that a matrix (tokens, heads, d, heads, d) turns; None if it is one.

    Raises
    ------
    RopeError
        If it turns no pairs, with what it does instead.
    """
    one = _of_one_head(matrix, name, eps)
    coupled = np.abs(one).max(axis=0) > _COUPLED
    lone = coupled & (coupled.sum(0)[None, :] == 1) & (coupled.sum(1)[:, None] == 1)
    factor = _standing(one, lone, name, eps)
    groups: dict[tuple[int, ...], list[int]] = {}
    for i in np.flatnonzero((coupled & ~lone).any(axis=0)):
        groups.setdefault(tuple(np.flatnonzero(coupled[:, i]).tolist()), []).append(int(i))
    if not groups:
        return None
    for outs, ins in groups.items():
        if len(outs) != 2 or len(ins) != 2:
            raise RopeError(
                f"function is no rotation of pairs: components {list(outs)[:6]} of {name} are made "
                f"of components {ins[:6]}"
            )
    pairs = sorted((i, j, o, p) for (o, p), (i, j) in groups.items())
    _check_pairs(one, pairs, name, eps)
    return _layout(pairs, one.shape[-1], name, factor)


def _of_one_head(matrix: Floats, name: str, eps: float) -> Floats:
    heads = matrix.shape[1]
    first = matrix[:, 0, :, 0, :]
    for h in range(heads):
        for g in range(heads):
            block = matrix[:, h, :, g, :]
            if h != g and np.abs(block).max() > _COUPLED:
                raise RopeError(
                    f"function mixes heads: head {h} of {name} is made of head {g} too. It rotates "
                    "before the heads are split, or takes another axis for heads; see axes"
                )
            if h == g and np.abs(block - first).max() > 4 * eps + 1e-6:
                raise RopeError(
                    f"angles differ between heads: head {h} of {name} is turned otherwise than "
                    "head 0. It rotates before the heads are split, or takes heads for tokens; "
                    "see axes"
                )
    return first


def _standing(one: Floats, lone: np.ndarray, name: str, eps: float) -> float:
    rows, columns = np.nonzero(lone)
    values = one[:, rows, columns]
    if not values.size:
        return 1.0
    spread = np.abs(values - values[0]).max(axis=0)
    if spread.max() > 4 * eps + 1e-5:
        i = columns[spread.argmax()]
        shown = ", ".join(f"{v:.3g}" for v in values[:3, spread.argmax()])
        raise RopeError(
            f"function is no rotation: component {i} of {name} is multiplied by {shown} at "
            "positions 0, 1, 2, and turned with no other. Its norm is not kept; the part with sin "
            "may be missing"
        )
    moved = rows != columns
    if moved.all() and moved.any() and len(moved) == one.shape[-1]:
        raise RopeError(f"function is no rotation: it moves the components of {name} about")
    return float(np.median(values[0]))


def _check_pairs(
    one: Floats, pairs: list[tuple[int, int, int, int]], name: str, eps: float
) -> None:
    """Check that each pair is turned, and by one angle."""
    i, j, o, p = np.array(pairs).T
    a, b, c, e = one[:, o, i], one[:, o, j], one[:, p, i], one[:, p, j]
    close = 8 * eps + 1e-5

    def alike(x: Floats, y: Floats) -> bool:
        return bool(np.abs(x - y).max() <= close * max(1.0, float(np.abs(one).max())))

    if alike(a, e) and alike(b, -c):
        return
    who = f"function is no rotation: in a pair of {name}, such as components {pairs[0][:2]},"
    if alike(a, e) and alike(b, c):
        raise RopeError(
            f"{who} both parts add the other times sin; one must subtract it. The norm is not kept"
        )
    if alike(a, -e) and alike(b, c):
        raise RopeError(f"{who} one part has the wrong sign: the pair is reflected, and not turned")
    rows = np.hypot(a, b), np.hypot(c, e)
    columns = np.hypot(a, c), np.hypot(b, e)
    for first, second in (rows, columns):
        if max(np.ptp(first), np.ptp(second)) <= 1e-2 * first.max():
            raise RopeError(
                f"{who} the two parts turn by different angles, so the norm is not kept: "
                + _mismatch(np.arctan2(-b, a)[1], np.arctan2(c, e)[1], pairs)
            )
    raise RopeError(f"{who} the norm is not kept")


def _mismatch(first: Floats, second: Floats, pairs: list[tuple[int, int, int, int]]) -> str:
    """Return how the columns of tables must lie, so that the parts have these angles."""
    angles = np.empty(2 * len(pairs))
    ins = np.array(pairs)[:, :2] - pairs[0][0]
    if ins.max() >= len(angles):
        return "angles differ within a pair"
    angles[ins[:, 0]], angles[ins[:, 1]] = first, second
    by_halves = np.abs(angles[: len(pairs)] - angles[len(pairs) :]).max()
    by_neighbours = np.abs(angles[::2] - angles[1::2]).max()
    if by_halves < 1e-5:
        return "cos and sin are laid out for halves, and the rotation takes neighbours"
    if by_neighbours < 1e-5:
        return "cos and sin are laid out for neighbours, and the rotation takes halves"
    return "angles differ within a pair"


def _layout(
    pairs: list[tuple[int, int, int, int]], head_dim: int, name: str, factor: float
) -> Pairs:
    i, j, o, p = np.array(pairs).T
    start, gap, out_gap = int(i[0]), int(j[0] - i[0]), int(p[0] - o[0])
    neighbours = bool((j - i == 1).all() and ((i - start) % 2 == 0).all())
    halves = bool((j - i == gap).all() and (i < start + gap).all())
    same = bool((i == o).all() and (j == p).all())
    layout: Layout
    if same and neighbours:
        layout, rotary_dim, places = "interleaved", int(i[-1]) + 2 - start, (i - start) // 2
    elif same and halves:
        layout, rotary_dim, places = "half", 2 * gap, i - start
    elif neighbours and (p - o == out_gap).all() and (o - start == (i - start) // 2).all():
        layout, rotary_dim, places = "interleaved_to_half", 2 * out_gap, (i - start) // 2
    else:
        shown = ", ".join(f"({a}, {b})" for a, b, _, _ in pairs[:3])
        written = "" if same else ", written to others"
        what = f"function turns pairs {shown} ... of {name}{written}, which is no known layout"
        if same and (j - i == gap).all():
            what += (
                f": several slices of a head are turned, each of {2 * gap} components. Use a RoPE "
                "for each, with rotary_dim and rotary_offset"
            )
        raise RopeError(what)
    if start + rotary_dim > head_dim:
        raise RopeError(f"function turns pairs beyond a slice of {name}: {pairs[-1][:2]}")
    offset = start - head_dim if start and start + rotary_dim == head_dim else start
    return Pairs(
        layout,
        rotary_dim,
        offset,
        tuple((int(a), int(b)) for a, b, _, _ in pairs),
        tuple((int(a), int(b)) for _, _, a, b in pairs),
        tuple(int(place) for place in places),
        factor,
    )
