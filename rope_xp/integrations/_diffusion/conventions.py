"""How functions of diffusers take x and its tables: what they are packed in, and their axes."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from rope_xp._contract.typing import Layout
from rope_xp.integrations import _formats
from rope_xp.integrations._formats import Format, Tables

Packing = Literal["pair", "two", "complex", "matrices", "joined", "angles", "thirds"]
"""cos and sin in a tuple, as two arguments, as complex numbers, as matrices (..., 2, 2), or as one
array whose last axis has cos and then sin; the angles themselves; or for each third of a head a
tuple of cos and sin, and positions that pick rows of them."""

Laid = tuple[str, str]
"""The axes of x and those of its tables, such as "bhsd" and "sd"."""

_LAID: tuple[Laid, ...] = tuple(
    (axes, table)
    for axes, tables in (
        ("bhsd", ("bhsd", "hsd", "bsd", "sd")),
        ("bshd", ("bshd", "shd", "bsd", "sd")),
        ("bsd", ("bsd", "sd")),
        ("bhds", ("bhsd", "bsd", "sd")),
    )
    for table in tables
)


def ways_to_lie(packing: Packing) -> tuple[Laid, ...]:
    """Return how x and tables may be laid out."""
    return (("bhsd", "bsd"),) if packing == "thirds" else _LAID


@dataclass(frozen=True)
class Convention:
    """What a function does with x and tables, found by calling it."""

    packing: Packing
    form: Format
    """How columns are written; "pairs" where there is one for each pair."""
    layout: Layout
    arrays: int
    """How many arrays one call rotates."""
    laid: tuple[Laid, ...]
    """How x and tables may be laid out. Some functions leave it to broadcasting."""
    passes: bool
    """Whether a head may be longer than what the tables rotate."""

    @property
    def parts(self) -> int:
        """How many parts of a head are rotated alike, each as if it were a token of its own."""
        return 3 if self.packing == "thirds" else 1

    def tables(self, given: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return cos and sin of one column a pair, of what is given as tables; None if not so."""
        written = self._columns(given)
        if written is not None:
            return _formats.read(written, self.form)
        table = _alone(given)
        if self.packing == "complex" and table is not None and table.is_complex():
            return table.real, table.imag
        if self.packing == "matrices" and table is not None and table.shape[-2:] == (2, 2):
            return table[..., 0, 0], table[..., 1, 0]
        return None

    def _columns(self, given: tuple[Any, ...]) -> Tables | None:
        """Return cos and sin as they are written; None of what has them otherwise."""
        if self.packing in ("pair", "two"):
            parts = given[0] if self.packing == "pair" and len(given) == 1 else given
            return tuple(parts) if _two_real(parts) else None
        if self.packing == "thirds":
            return _picked(*given) if _of_thirds(given) else None
        table = _alone(given)
        if table is None or not table.is_floating_point():
            return None
        if self.packing == "joined":
            return table.chunk(2, dim=-1)
        return (table.cos(), table.sin()) if self.packing == "angles" else None

    def fitting(self, x: torch.Tensor, table: torch.Tensor) -> Laid | None:
        """Return how an array and a table are laid out; None if their shapes do not tell."""
        fits = [laid for laid in self.laid if _fits(x, table, *laid)]
        # An axis of length 1 may stand for the batch or for heads, which is the same.
        return fits[0] if len({axes for axes, _ in fits}) == 1 else None


def _fits(x: torch.Tensor, table: torch.Tensor, axes: str, table_axes: str) -> bool:
    if (x.ndim, table.ndim) != (len(axes), len(table_axes)):
        return False
    sizes = dict(zip(axes, x.shape, strict=True))
    lengths = dict(zip(table_axes, table.shape, strict=True))
    return (
        lengths["s"] == sizes["s"]
        and lengths.get("h", 1) == 1
        and lengths.get("b", 1) in (1, sizes["b"])
    )


def _alone(given: tuple[Any, ...]) -> torch.Tensor | None:
    return given[0] if len(given) == 1 and isinstance(given[0], torch.Tensor) else None


def _two_real(parts: Any) -> bool:
    return _several(2, parts) and all(t.is_floating_point() for t in parts)


def _several(n: int, parts: Any) -> bool:
    listed = isinstance(parts, tuple | list) and len(parts) == n
    return listed and all(isinstance(t, torch.Tensor) for t in parts)


def _of_thirds(given: tuple[Any, ...]) -> bool:
    if len(given) != 2 or not _several(3, given[1]) or not isinstance(given[0], tuple | list):
        return False
    pairs, positions = given
    if len(pairs) != 3 or not all(map(_two_real, pairs)):
        return False
    return len({p.shape for p in positions}) == 1 == len({t.shape[-1] for p in pairs for t in p})


def _picked(pairs: Any, positions: Any) -> Tables:
    """Return cos and sin of each third of each token, one after the other."""
    rows = (
        [torch.nn.functional.embedding(at, table) for table in pair]
        for pair, at in zip(pairs, positions, strict=True)
    )
    return tuple(torch.stack(thirds, dim=-2).flatten(-3, -2) for thirds in zip(*rows, strict=True))


# --- the other way -------------------------------------------------------------------------------


def given(angles: torch.Tensor, convention: Convention) -> tuple[Any, ...]:
    """Return tables of these angles as a function would take them."""
    cos, sin = angles.cos(), angles.sin()
    if convention.packing == "complex":
        return _formats.written(cos, sin, "complex")
    if convention.packing == "matrices":
        return (matrices(cos, sin),)
    if convention.packing == "angles":
        return _formats.written(angles, angles, convention.form)[:1]
    pair = _formats.written(cos, sin, convention.form)
    if convention.packing == "thirds":
        return _in_thirds(pair)
    if convention.packing == "joined":
        return (torch.cat(pair, dim=-1),)
    return pair if convention.packing == "two" else (pair,)


def _in_thirds(pair: Tables) -> tuple[Any, ...]:
    """Return tables (batch, 3 tokens, d) as three, one below the other, and their rows."""
    batch, tokens, columns = pair[0].shape
    each = (table.reshape(-1, 3, columns).unbind(1) for table in pair)
    rows = torch.arange(batch * tokens // 3).view(batch, -1)
    return tuple(zip(*each, strict=True)), (rows,) * 3


def matrices(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return tables as matrices (..., 2, 2) that turn a pair."""
    turns = torch.stack([cos, -sin, sin, cos], dim=-1)
    return turns.view(*cos.shape, 2, 2)
