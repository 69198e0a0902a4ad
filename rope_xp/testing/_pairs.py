"""Find the pairs that a function rotates, from its matrix at a few positions."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp.testing._box import EPS, BlackBox, CallRefused, Complex, Floats

# Uncoupled components are so to the bit in any implementation that multiplies.
_COUPLED = 1e-7
_POSITIONS = ([0, 1, 2, 7, 1000, 65536], [0, 1, 2, 7, 100, 1000], [0, 1, 2, 3, 5, 7])
"""Slow pairs need large positions, which not every function takes."""

Indices = NDArray[np.int64]


class Pairs(NamedTuple):
    """The rotated pairs of a head, in the order of their frequencies."""

    layout: Layout
    rotary_dim: int
    rotary_offset: int
    sources: Indices
    targets: Indices
    """The components that a pair is read from and written to, (pairs, 2)."""
    indices: Indices
    """The index of each pair's frequency; those of pairs that stand still are missing."""
    standing: float
    """What unrotated components are multiplied by."""


class RotatedArray(NamedTuple):
    """One of the arrays that a function rotates."""

    box: BlackBox
    name: str
    pairs: Pairs

    def read(self, positions: ArrayLike) -> Complex:
        """Return the function's cos + i sin of each pair, (tokens, pairs)."""
        x = np.zeros((1, self.box.heads, self.box.head_dim))
        x[..., self.pairs.sources[:, 0]] = 1.0
        rotated = self.box.rotate(x, positions)["qkv".index(self.name)][0, 0]
        first, second = self.pairs.targets.T
        return np.asarray(rotated[:, first] + 1j * rotated[:, second])


def find_rotated_arrays(box: BlackBox) -> list[RotatedArray | None]:
    """Return each array with its pairs, None if it is not rotated; raise if it has no pairs."""
    found = []
    for matrix, name in zip(_read_matrices(box), box.names, strict=False):
        pairs = _find_pairs(matrix, name, EPS[box.dtype])
        found.append(None if pairs is None else RotatedArray(box, name, pairs))
    return found


def _read_matrices(box: BlackBox) -> Floats:
    """Return what each array is multiplied by, (arrays, tokens, heads, d, heads, d)."""
    n = box.heads * box.head_dim
    units = np.eye(n).reshape(n, box.heads, box.head_dim)
    for positions in _POSITIONS:
        try:
            results = np.stack(box.rotate(units, positions))  # (arrays, n, heads, tokens, d)
        except CallRefused as refused:
            reason = str(refused)
            continue
        if np.isfinite(results).all():
            matrices = np.moveaxis(results, (1, 3), (-1, 1))
            return matrices.reshape(*matrices.shape[:-1], box.heads, box.head_dim)
        reason = "its results are not finite"  # as large positions in float16
    raise RopeError(f"function takes positions 0 to 7 in order alone; of others it says: {reason}")


def _find_pairs(matrix: Floats, name: str, eps: float) -> Pairs | None:
    """Return the pairs that a matrix (tokens, heads, d, heads, d) rotates, None without any."""
    head = _extract_head(matrix, name, eps)
    coupled = np.abs(head).max(axis=0) > _COUPLED
    lone = coupled & (coupled.sum(0)[None, :] == 1) & (coupled.sum(1)[:, None] == 1)
    standing = _check_standing(head, lone, name, eps)
    groups: dict[tuple[int, ...], list[int]] = {}
    for column in np.flatnonzero((coupled & ~lone).any(axis=0)):
        rows = tuple(np.flatnonzero(coupled[:, column]).tolist())
        groups.setdefault(rows, []).append(int(column))
    if not groups:
        return None
    for rows, columns in groups.items():
        if len(rows) != 2 or len(columns) != 2:
            raise RopeError(
                f"function is no rotation of pairs: components {list(rows)[:6]} of {name} are made "
                f"of components {columns[:6]}"
            )
    quadruples = np.array(sorted((*columns, *rows) for rows, columns in groups.items()))
    _check_pairs(head, quadruples, name, eps)
    return _find_layout(quadruples, head.shape[-1], name, standing)


def _extract_head(matrix: Floats, name: str, eps: float) -> Floats:
    """Return the matrix of head 0, (tokens, d, d), after a check that all heads have it."""
    heads = matrix.shape[1]
    first = matrix[:, 0, :, 0, :]
    for h, g in np.ndindex(heads, heads):
        block = matrix[:, h, :, g, :]
        if h != g and np.abs(block).max() > _COUPLED:
            raise RopeError(
                f"function mixes heads: head {h} of {name} is made of head {g} too. It rotates "
                "before the heads are split, or takes another axis for heads; see axes"
            )
        if h == g and np.abs(block - first).max() > 4 * eps + 1e-6:
            raise RopeError(
                f"angles differ between heads: head {h} of {name} is turned otherwise than "
                "head 0. It rotates before the heads are split, or takes heads for tokens; see axes"
            )
    return first


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
            f"function is no rotation: component {columns[spread.argmax()]} of {name} is "
            f"multiplied by {shown} at positions 0, 1, 2, and turned with no other. Its norm is "
            "not kept; the part with sin may be missing"
        )
    if (rows != columns).all() and len(rows) == head.shape[-1]:
        raise RopeError(f"function is no rotation: it moves the components of {name} about")
    return float(np.median(values[0]))


def _check_pairs(head: Floats, quadruples: Indices, name: str, eps: float) -> None:
    """Check that each pair is rotated, and by one angle."""
    i, j, o, p = quadruples.T
    a, b, c, d = head[:, o, i], head[:, o, j], head[:, p, i], head[:, p, j]
    tolerance = (8 * eps + 1e-5) * max(1.0, float(np.abs(head).max()))

    def is_close(x: Floats, y: Floats) -> bool:
        return bool(np.abs(x - y).max() <= tolerance)

    if is_close(a, d) and is_close(b, -c):
        return
    reason = "the norm is not kept"
    if is_close(a, d) and is_close(b, c):
        reason = "both parts add the other times sin; one must subtract it. The norm is not kept"
    elif is_close(a, -d) and is_close(b, c):
        reason = "one part has the wrong sign: the pair is reflected, and not turned"
    else:
        for norms in ((np.hypot(a, b), np.hypot(c, d)), (np.hypot(a, c), np.hypot(b, d))):
            if max(np.ptp(norms[0]), np.ptp(norms[1])) <= 1e-2 * norms[0].max():
                cause = _explain_angles(np.arctan2(-b, a)[1], np.arctan2(c, d)[1], quadruples)
                reason = f"the two parts turn by different angles, so the norm is not kept: {cause}"
                break
    pair = f"in a pair of {name}, such as components ({i[0]}, {j[0]})"
    raise RopeError(f"function is no rotation: {pair}, {reason}")


def _explain_angles(first: Floats, second: Floats, quadruples: Indices) -> str:
    """Return the order of table columns that gives the parts these angles."""
    angles = np.empty(2 * len(quadruples))
    read = quadruples[:, :2] - quadruples[0, 0]
    if read.max() < len(angles):
        angles[read[:, 0]], angles[read[:, 1]] = first, second
        if np.abs(angles[: len(first)] - angles[len(first) :]).max() < 1e-5:
            return "cos and sin are laid out for halves, and the rotation takes neighbours"
        if np.abs(angles[::2] - angles[1::2]).max() < 1e-5:
            return "cos and sin are laid out for neighbours, and the rotation takes halves"
    return "angles differ within a pair"


def _find_layout(quadruples: Indices, head_dim: int, name: str, standing: float) -> Pairs:
    i, j, o, p = (int(n) for n in quadruples[0])
    sizes = {
        "interleaved": int(quadruples[-1, 0]) + 2 - i,
        "half": 2 * (j - i),
        "interleaved_to_half": 2 * (p - o),
    }
    for layout in get_args(Layout):
        rotary_dim = sizes[layout]
        matches = (quadruples[:, None] == i + _list_pairs(layout, rotary_dim)).all(axis=-1)
        if matches.any(axis=-1).all():
            break
    else:
        pairs = ", ".join(f"({a}, {b})" for a, b, _, _ in quadruples[:3])
        in_place = bool((quadruples[:, :2] == quadruples[:, 2:]).all())
        moved = "" if in_place else ", written to others"
        message = f"function turns pairs {pairs} ... of {name}{moved}, which is no known layout"
        if in_place and np.ptp(quadruples[:, 1] - quadruples[:, 0]) == 0:
            message += (
                f": several slices of a head are turned, each of {2 * (j - i)} components. Use a "
                "RoPE for each, with rotary_dim and rotary_offset"
            )
        raise RopeError(message)
    if i + rotary_dim > head_dim:
        raise RopeError(f"function turns pairs beyond a slice of {name}: ({i}, {j}) ...")
    offset = i - head_dim if i and i + rotary_dim == head_dim else i
    sources, targets = quadruples[:, :2], quadruples[:, 2:]
    return Pairs(layout, rotary_dim, offset, sources, targets, matches.argmax(axis=-1), standing)


def _list_pairs(layout: Layout, rotary_dim: int) -> Indices:
    """Return the components that each pair of a layout is read from and written to, (r/2, 4)."""
    n = np.arange(rotary_dim // 2)
    neighbours, halves = (2 * n, 2 * n + 1), (n, n + rotary_dim // 2)
    sources = halves if layout == "half" else neighbours
    targets = neighbours if layout == "interleaved" else halves
    return np.stack([*sources, *targets], axis=-1)
