"""Find the pairs that a function rotates, from its matrix at a few positions."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp.testing._box import BlackBox, CallRefused, Complex, Floats

# Uncoupled components are so to the bit in any implementation that multiplies.
_COUPLED = 1e-7
_POSITIONS = ([0, 1, 2, 7, 1000, 65536], [0, 1, 2, 7, 100, 1000], [0, 1, 2, 3, 5, 7])
"""Slow pairs need large positions, which not every function takes."""

Indices = NDArray[np.int64]


class RotatedArray(NamedTuple):
    """One of the arrays that a function rotates, and its pairs in the order of frequencies."""

    box: BlackBox
    name: str
    layout: Layout
    rotary_dim: int
    rotary_offset: int
    pairs: Indices  # the two components that each is read from, and written to, (pairs, 4)
    indices: Indices  # of each pair's frequency; those of pairs that stand still are missing
    standing: float  # what unrotated components are multiplied by

    def read(self, positions: ArrayLike) -> Complex:
        """Return the function's cos + i sin of each pair, (tokens, pairs)."""
        first, _, real, imaginary = self.pairs.T
        x = np.zeros((1, self.box.heads, self.box.head_dim))
        x[..., first] = 1.0
        rotated = self.box.rotate(x, positions)["qkv".index(self.name)][0, 0]
        return np.asarray(rotated[:, real] + 1j * rotated[:, imaginary])


def find_rotated_arrays(box: BlackBox) -> list[RotatedArray | None]:
    """Return each array with its pairs, None if it is not rotated; raise if it has no pairs."""
    n = box.heads * box.head_dim
    # With the first unit vector once more, and zeros.
    units = np.eye(n, n)[[*range(n), 0, 0]]
    units[-1] = 0.0
    units = units.reshape(-1, box.heads, box.head_dim)
    # (arrays, n, heads, tokens, d), and then (arrays, tokens, heads, d, heads, d)
    _, results = read_first(lambda p: np.stack(box.rotate(units, p)), _POSITIONS)
    for name, (first, *_, same, zeros) in zip(box.names, results, strict=False):
        if np.abs(zeros).max() > _COUPLED:
            most = f"{np.abs(zeros).max():.3g}"
            raise RopeError(f"function adds a constant to {name}: it makes {most} of zeros")
        if np.abs(first - same).max() > 4 * box.eps + 1e-6:
            raise RopeError(
                f"batch entries of {name} with equal positions are rotated differently: the place "
                "in the batch matters too, as where positions run on from sequence to sequence"
            )
    matrices = np.moveaxis(results[:, :n], (1, 3), (-1, 1))
    matrices = matrices.reshape(*matrices.shape[:-1], box.heads, box.head_dim)
    return [
        _find_pairs(box, name, _extract_head(matrix, name, box.eps))
        for matrix, name in zip(matrices, box.names, strict=False)
    ]


def read_first(
    read: Callable[[list[int]], NDArray[Any]], candidates: Iterable[list[int]]
) -> tuple[list[int], NDArray[Any]]:
    """Return the first positions whose results are finite, and these results."""
    for positions in candidates:
        try:
            results = np.asarray(read(positions))
        except CallRefused as refused:
            reason = str(refused)
            continue
        if np.isfinite(results).all():
            return positions, results
        reason = "its results are not finite"  # as large positions in float16
    raise RopeError(f"function takes only positions 0 to 7 in order, otherwise: {reason}")


def _extract_head(matrix: Floats, name: str, eps: float) -> Floats:
    """Return the matrix of head 0, (tokens, d, d), after a check that all heads have it."""
    first = matrix[:, 0, :, 0]
    for h, g in np.ndindex(matrix.shape[1], matrix.shape[1]):
        block = matrix[:, h, :, g]
        if h != g and np.abs(block).max() > _COUPLED:
            fault = f"function mixes heads: head {h} of {name} depends on head {g} too"
        elif h == g and np.abs(block - first).max() > 4 * eps + 1e-6:
            fault = f"heads differ: head {h} of {name} is rotated unlike head 0"
        else:
            continue
        cause = "It may rotate before the heads are split, or take another axis for them; see axes"
        raise RopeError(f"{fault}. {cause}")
    return first


def _find_pairs(box: BlackBox, name: str, head: Floats) -> RotatedArray | None:
    """Return the pairs that a matrix (tokens, d, d) rotates, None without any."""
    coupled = np.abs(head).max(axis=0) > _COUPLED
    lone = coupled & (coupled.sum(0)[None, :] == 1) & (coupled.sum(1)[:, None] == 1)
    standing = _check_standing(head, lone, name, box.eps)
    groups: dict[tuple[int, ...], list[int]] = {}
    for column in np.flatnonzero((coupled & ~lone).any(axis=0)).tolist():
        groups.setdefault(tuple(np.flatnonzero(coupled[:, column]).tolist()), []).append(column)
    if not groups:
        return None
    for rows, columns in groups.items():
        if len(rows) != 2 or len(columns) != 2:
            raise RopeError(
                f"the function is not a rotation of pairs: components {list(rows)[:6]} of {name} "
                f"are made of components {columns[:6]}"
            )
    pairs = np.array(sorted((*columns, *rows) for rows, columns in groups.items()))
    if fault := _find_fault(head, pairs, box.eps):
        pair = f"in a pair of {name}, such as components ({pairs[0, 0]}, {pairs[0, 1]})"
        raise RopeError(f"the function is not a rotation: {pair}, {fault}")
    layout, rotary_dim, indices = _find_layout(pairs, name)
    start, end = pairs[0, 0], pairs[0, 0] + rotary_dim
    if end > box.head_dim:
        pair = f"({pairs[0, 0]}, {pairs[0, 1]}) ..."
        raise RopeError(f"function turns pairs beyond a slice of {name}: {pair}")
    offset = int(start - box.head_dim if start and end == box.head_dim else start)
    return RotatedArray(box, name, layout, rotary_dim, offset, pairs, indices, standing)


def _check_standing(head: Floats, lone: NDArray[np.bool_], name: str, eps: float) -> float:
    """Return what components that are coupled with no other are multiplied by."""
    rows, columns = np.nonzero(lone)
    values = head[:, rows, columns]
    if not values.size:
        return 1.0
    spread = np.abs(values - values[0]).max(axis=0)
    if spread.max() > 4 * eps + 1e-5:
        shown = ", ".join(f"{v:.3g}" for v in values[:3, spread.argmax()])
        raise RopeError(
            f"the function is not a rotation: component {columns[spread.argmax()]} of {name} is "
            f"multiplied by {shown} at positions 0, 1, 2, and paired with no other. Its norm is "
            "not kept; the part with sin may be missing"
        )
    if (rows != columns).all() and len(rows) == head.shape[-1]:
        raise RopeError(f"the function is not a rotation: it permutes the components of {name}")
    return float(np.median(values[0]))


def _find_fault(head: Floats, pairs: Indices, eps: float) -> str | None:
    """Return why pairs are not rotated by one angle each, None if they are."""
    i, j, o, p = pairs.T
    a, b, c, d = head[:, o, i], head[:, o, j], head[:, p, i], head[:, p, j]
    tolerance = (8 * eps + 1e-5) * max(1.0, float(np.abs(head).max()))

    def is_close(x: Floats, y: Floats) -> bool:
        return bool(np.abs(x - y).max() <= tolerance)

    if is_close(a, d) and is_close(b, -c):
        return None
    if is_close(a, d) and is_close(b, c):
        return "both parts add the other times sin; one must subtract it. The norm is not kept"
    if is_close(a, -d) and is_close(b, c):
        if is_close(a[0], 0.0 * a[0]):
            return "the two results are written to each other's place"
        return "one part has the wrong sign: the pair is reflected, not rotated"
    rows, columns = (np.hypot(a, b), np.hypot(c, d)), (np.hypot(a, c), np.hypot(b, d))
    if not any(max(map(np.ptp, norms)) <= 1e-2 * norms[0].max() for norms in (rows, columns)):
        return "the norm is not kept"
    # The angles of the parts show the order of table columns.
    cause, angles = "angles differ within a pair", np.empty(2 * len(pairs))
    read = pairs[:, :2] - pairs[0, 0]
    if read.max() < len(angles):
        angles[read] = np.stack([np.arctan2(-b, a)[1], np.arctan2(c, d)[1]], axis=-1)
        for tables, rotation, order in (
            ("halves", "neighbours", angles.reshape(2, -1)),
            ("neighbours", "halves", angles.reshape(-1, 2).T),
        ):
            if np.abs(order[0] - order[1]).max() < 1e-5:
                cause = f"cos and sin are laid out for {tables}, but the rotation reads {rotation}"
                break
    return f"the two parts turn by different angles, so the norm is not kept: {cause}"


def list_pairs(layout: Layout, rotary_dim: int) -> Indices:
    """Return the two components that each pair is read from, and written to, (4, pairs)."""
    n = np.arange(2 * (rotary_dim // 2))
    halves, neighbours = n.reshape(2, -1), n.reshape(-1, 2).T
    read = halves if layout == "half" else neighbours
    return np.concatenate([read, neighbours if layout == "interleaved" else halves])


def _find_layout(pairs: Indices, name: str) -> tuple[Layout, int, Indices]:
    """Return the layout of pairs, its rotary_dim, and the index of each pair."""
    i, j, o, p = (int(n) for n in pairs[0])
    sizes = {
        "interleaved": int(pairs[-1, 0]) + 2 - i,
        "half": 2 * (j - i),
        "interleaved_to_half": 2 * (p - o),
    }
    for layout in get_args(Layout):
        rotary_dim = sizes[layout]
        matches = (pairs[:, None] == i + list_pairs(layout, rotary_dim).T).all(axis=-1)
        if matches.any(axis=-1).all():
            return layout, rotary_dim, matches.argmax(axis=-1)
    shown = ", ".join(f"({a}, {b})" for a, b, _, _ in pairs[:3])
    in_place = bool((pairs[:, :2] == pairs[:, 2:]).all())
    moved = "" if in_place else ", written to others"
    message = f"function turns pairs {shown} ... of {name}{moved}, which is no known layout"
    if in_place and np.ptp(pairs[:, 1] - pairs[:, 0]) == 0:
        message += (
            f": several slices of a head are turned, each of {2 * (j - i)} components. Use a "
            "RoPE for each, with rotary_dim and rotary_offset"
        )
    raise RopeError(message)
