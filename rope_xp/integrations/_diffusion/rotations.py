"""The functions with which models of diffusers rotate: recognised, and replaced."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import torch

from rope_xp._apply import apply_tables
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Layout
from rope_xp.integrations._diffusion import conventions
from rope_xp.integrations._diffusion.conventions import Convention, Packing
from rope_xp.integrations._diffusion.sites import Options, Site
from rope_xp.integrations._formats import Format

_SIZES = {"b": 2, "h": 3, "s": 5}
_PAIRS, _PASSED = 4, 4
# One rotation in float32 of numbers below 6.
_CLOSE = 1e-5


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
        ways = conventions.ways_to_lie(packing)
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
    given = conventions.given(angles, trial)
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


# --- replacement ---------------------------------------------------------------------------------


def rotated(
    arrays: list[Any], given: tuple[Any, ...], convention: Convention
) -> tuple[torch.Tensor, ...] | None:
    """Return rotated arrays; None where they are laid out otherwise."""
    tables = convention.tables(given)
    if tables is None or not all(isinstance(x, torch.Tensor) for x in arrays):
        return None
    if any(x.shape[-1] % convention.parts for x in arrays):
        return None
    xs = [_spread(x, convention.parts) for x in arrays]
    every = {convention.fitting(x, table) for x in xs for table in tables}
    if len(every) != 1 or None in every:
        return None
    ((axes, table_axes),) = (laid for laid in every if laid is not None)
    cos, sin = (t.squeeze(table_axes.index("h")) if "h" in table_axes else t for t in tables)
    rest = xs[0].shape[axes.index("d")] - 2 * cos.shape[-1]
    if rest < 0 or (rest and not convention.passes):
        return None
    turned = [_turned(x, cos, sin, convention.layout, axes) for x in xs]
    if convention.parts == 1:
        return tuple(turned)
    return tuple(y.reshape(x.shape) for x, y in zip(arrays, turned, strict=True))


def _spread(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Return parts of heads (..., tokens, d) as tokens (..., parts * tokens, d / parts)."""
    if parts == 1:
        return x
    *batch, tokens, head_dim = x.shape
    return x.reshape(*batch, parts * tokens, head_dim // parts)


def _turned(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layout: Layout, axes: str
) -> torch.Tensor:
    place = axes.index("d")
    if place + 1 == len(axes):
        return apply_tables(x, cos, sin, layout=layout, axes=axes)
    last = axes.replace("d", "") + "d"
    y = apply_tables(x.movedim(place, -1), cos, sin, layout=layout, axes=last)
    return y.movedim(-1, place)


def replacement(site: Site, known: dict[Options, Convention]) -> Callable[..., Any]:
    """Return a function that does the same, by rope_xp."""
    function = site.function
    arrays = next(iter(known.values())).arrays

    def rotate(*arguments: Any, **options: Any) -> Any:
        convention = known.get(tuple(sorted(options.items())))
        xs = list(arguments[:arrays])
        if convention is not None:
            results = rotated(xs, arguments[arrays:], convention)
            if results is not None:
                return results if arrays > 1 else results[0]
        return function(*arguments, **options)

    rotate.__name__ = site.name
    return rotate
