"""The functions with which models of diffusers rotate: recognised, and replaced."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from rope_xp._apply import apply_tables
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Layout
from rope_xp.integrations import _formats
from rope_xp.integrations._diffusion.sites import Options, Site
from rope_xp.integrations._formats import Format

Packing = Literal["pair", "two", "complex", "matrices", "joined", "angles", "thirds"]
"""cos and sin in a tuple, as two arguments, as complex numbers, as matrices (..., 2, 2), or as one
array whose last axis has cos and then sin; or the angles themselves; or a tuple for each third of a
head, of cos and sin that positions, which follow, pick rows of."""

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
_LAID_IN_THIRDS: tuple[Laid, ...] = (("bhsd", "bsd"),)
_SIZES = {"b": 2, "h": 3, "s": 5}
_PAIRS, _PASSED = 4, 4
# One rotation in float32 of numbers below 6.
_CLOSE = 1e-5


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
        parts = given if self.packing == "two" or len(given) != 1 else given[0]
        pair = tuple(parts) if isinstance(parts, tuple | list) else None
        table = parts if isinstance(parts, torch.Tensor) else None
        if self.packing in ("pair", "two") and pair is not None and _two_real(pair):
            cos, sin = pair
            return _formats.read((cos, sin), self.form)
        if self.packing == "complex" and table is not None and table.is_complex():
            return table.real, table.imag
        if self.packing == "joined" and table is not None and table.is_floating_point():
            cos, sin = table.chunk(2, dim=-1)
            return _formats.read((cos, sin), self.form)
        if self.packing == "angles" and table is not None and table.is_floating_point():
            return _formats.read((table.cos(), table.sin()), self.form)
        if self.packing == "thirds" and _of_thirds(given):
            return _formats.read(_picked(*given), self.form)
        if self.packing == "matrices" and table is not None and table.shape[-2:] == (2, 2):
            return table[..., 0, 0], table[..., 1, 0]
        return None

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


def _two_real(tables: tuple[Any, ...]) -> bool:
    return len(tables) == 2 and all(
        isinstance(t, torch.Tensor) and t.is_floating_point() for t in tables
    )


def _of_thirds(given: tuple[Any, ...]) -> bool:
    return (
        len(given) == 2
        and all(isinstance(part, tuple | list) and len(part) == 3 for part in given)
        and all(isinstance(pair, tuple) and _two_real(pair) for pair in given[0])
    )


def _picked(pairs: Any, positions: Any) -> tuple[torch.Tensor, ...]:
    """Return cos and sin of each third of each token, one after the other."""
    thirds = zip(*([t[at] for t in p] for p, at in zip(pairs, positions, strict=True)), strict=True)
    return tuple(torch.stack(tables, dim=-2).flatten(-3, -2) for tables in thirds)


# --- recognition ---------------------------------------------------------------------------------


def recognise(where: str, site: Site) -> dict[Options, Convention]:
    """Return what a function does, for each way in which a method calls it.

    Raises
    ------
    RopeError
        If it does not rotate as any layout does.
    """
    found = {}
    for options in site.options:
        call = functools.partial(site.function, **dict(options))
        convention = next(filter(None, (_tried(call, *trial) for trial in _trials())), None)
        if convention is None:
            called = ", ".join(f"{name}={value!r}" for name, value in options)
            msg = (
                f"cannot patch {where}: {site.name}({called}) does not rotate pairs by cos and sin "
                "of one angle, in any layout"
            )
            raise RopeError(msg)
        found[options] = convention
    return found


def _trials() -> Iterator[tuple[Packing, Format, Layout, int]]:
    real: tuple[tuple[Packing, Format], ...] = tuple(
        itertools.product(("pair", "two", "joined", "angles"), ("neighbours", "halves", "pairs"))
    )
    ways: tuple[tuple[Packing, Format], ...] = (
        *real,
        ("complex", "pairs"),
        ("matrices", "pairs"),
        ("thirds", "halves"),
    )
    for (packing, form), layout, arrays in itertools.product(ways, get_args(Layout), (1, 2)):
        yield packing, form, layout, arrays


def _tried(
    function: Callable[..., Any], packing: Packing, form: Format, layout: Layout, arrays: int
) -> Convention | None:
    """Return what a function does if it takes tables so; None if it does not."""

    def agreeing(passes: bool) -> Convention:
        trial = Convention(packing, form, layout, arrays, (), passes)
        ways = _LAID_IN_THIRDS if packing == "thirds" else _LAID
        agreed = (laid for laid in ways if _agrees(function, replace(trial, laid=(laid,))))
        return replace(trial, laid=tuple(agreed))

    whole = agreeing(False)
    if not whole.laid:
        return None
    part = agreeing(True)
    return part if part.laid == whole.laid else whole


def _agrees(function: Callable[..., Any], trial: Convention) -> bool:
    """Return whether a function does what the trial says to random arrays."""
    ((axes, table_axes),) = trial.laid
    generator = torch.Generator().manual_seed(0)
    made: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    head_dim = trial.parts * 2 * _PAIRS + _PASSED * trial.passes
    sizes = [_SIZES[a] for a in axes if a != "d"]
    # Heads lie in one piece, wherever their axis is: some functions view them as complex numbers.
    x = torch.randn([*sizes, head_dim], **made).movedim(-1, axes.index("d"))
    arrays = [x] * trial.arrays
    lengths = {"b": _SIZES["b"], "h": 1, "s": trial.parts * _SIZES["s"], "d": _PAIRS}
    angles = 6 * torch.rand([lengths[a] for a in table_axes], **made)
    given = _given(angles, trial)
    try:
        with warnings.catch_warnings(action="ignore"):
            theirs = function(*arrays, *given)
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return False  # made for tables of other kinds or shapes
    results = theirs if isinstance(theirs, tuple) else (theirs,)
    ours = rotated(arrays, given, trial)
    return (
        ours is not None
        and len(ours) == len(results)
        and all(isinstance(result, torch.Tensor) for result in results)
        and all(map(_close, ours, results))
    )


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    # One function rounds to bfloat16, whatever it is given.
    bound = 2**-6 if theirs.dtype == torch.bfloat16 else _CLOSE
    return ours.shape == theirs.shape and bool(
        torch.allclose(ours, theirs.to(ours.dtype), rtol=0, atol=bound)
    )


def _given(angles: torch.Tensor, trial: Convention) -> tuple[Any, ...]:
    """Return tables of these angles as the function would take them."""
    cos, sin = angles.cos(), angles.sin()
    if trial.packing == "complex":
        return _formats.written(cos, sin, "complex")
    if trial.packing == "matrices":
        return (matrices(cos, sin),)
    if trial.packing == "angles":
        return _formats.written(angles, angles, trial.form)[:1]
    pair = _formats.written(cos, sin, trial.form)
    if trial.packing == "thirds":
        at = torch.arange(cos[..., 0].numel() // 3).view(len(cos), -1)
        thirds = zip(*(t.unflatten(1, (-1, 3)).flatten(0, 1).unbind(1) for t in pair), strict=True)
        return tuple(thirds), (at, at, at)
    if trial.packing == "joined":
        return (torch.cat(pair, dim=-1),)
    return pair if trial.packing == "two" else (pair,)


def matrices(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return tables as matrices (..., 2, 2) that turn a pair."""
    turns = torch.stack([cos, -sin, sin, cos], dim=-1)
    return turns.view(*cos.shape, 2, 2)


# --- replacement ---------------------------------------------------------------------------------


def rotated(
    arrays: list[Any], given: tuple[Any, ...], convention: Convention
) -> tuple[torch.Tensor, ...] | None:
    """Return rotated arrays; None where they are laid out otherwise."""
    tables = convention.tables(given)
    if tables is None or not all(isinstance(x, torch.Tensor) for x in arrays):
        return None
    parts = convention.parts
    if any(x.shape[-1] % parts for x in arrays):
        return None
    xs = [x.unflatten(-1, (parts, -1)).flatten(-3, -2) for x in arrays] if parts > 1 else arrays
    every = {convention.fitting(x, table) for x in xs for table in tables}
    if len(every) != 1 or None in every:
        return None
    ((axes, table_axes),) = (laid for laid in every if laid is not None)
    cos, sin = (t.squeeze(table_axes.index("h")) if "h" in table_axes else t for t in tables)
    place = axes.index("d")
    rest = xs[0].shape[place] - 2 * cos.shape[-1]
    if rest < 0 or (rest and not convention.passes):
        return None
    last = axes.replace("d", "") + "d"
    turned = (
        apply_tables(x.movedim(place, -1), cos, sin, layout=convention.layout, axes=last)
        for x in xs
    )
    found = (y.movedim(-1, place) for y in turned)
    return tuple(y.reshape(x.shape) for x, y in zip(arrays, found, strict=True))


def replacement(site: Site, conventions: dict[Options, Convention]) -> Callable[..., Any]:
    """Return a function that does the same, by rope_xp."""
    function = site.function
    arrays = next(iter(conventions.values())).arrays

    def rotate(*arguments: Any, **options: Any) -> Any:
        convention = conventions.get(tuple(sorted(options.items())))
        xs = list(arguments[:arrays])
        if convention is not None:
            results = rotated(xs, arguments[arrays:], convention)
            if results is not None:
                return results if arrays > 1 else results[0]
        return function(*arguments, **options)

    rotate.__name__ = site.name
    return rotate
