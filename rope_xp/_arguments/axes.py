"""Axis names: one letter per axis, ``s`` tokens, ``h`` heads, ``d`` head_dim, others batch."""

from rope_xp._core.call import Axes, make_axes
from rope_xp._core.errors import RopeError

_BATCH = "bcefgijklmno"


# Looked up on every call. Never written to after import: torch.compile would guard on a change.
_DEFAULT = {2: make_axes("sd")} | {n: make_axes(_BATCH[: n - 3] + "shd") for n in range(3, 13)}
_NAMED = {
    names: make_axes(names) for names in ("bshd", "bhsd", "sbhd", "shd", "hsd", "sd", "bsd", "sbd")
}


def parse_axes(axes: str | None, ndim: int, argument: str, name: str = "axes") -> Axes:
    """Return where the axes of an ndim-dimensional array lie. ``name`` is that of ``axes``."""
    if axes is None:
        if ndim < 2:
            raise RopeError(
                f"{argument} has {ndim} axes; it needs at least two, tokens and head_dim "
                f"(for one vector, {argument}[None, :])"
            )
        if ndim not in _DEFAULT:
            raise RopeError(f"{argument} has {ndim} axes, too many to guess; name each with axes=")
        return _DEFAULT[ndim]
    parsed = _NAMED.get(axes) if isinstance(axes, str) else None
    if parsed is None:
        _check_names(axes, name)
        parsed = make_axes(axes)
    check_fit(parsed, argument, ndim, name)
    return parsed


def check_fit(axes: Axes, argument: str, ndim: int, name: str = "axes") -> None:
    """Check that an array has as many axes as ``axes`` names."""
    n = len(axes.names)
    if n != ndim:
        raise RopeError(f"{name}={axes.names!r} names {n} axes; {argument} has {ndim}. Name each")


def _check_names(axes: object, name: str) -> None:
    example = "'bshd' (batch, tokens, heads, head_dim) or 'bhsd' (Hugging Face)"
    if not isinstance(axes, str):
        raise TypeError(f"{name} must be a string such as {example}; got {axes!r}")
    problems = {
        "has characters that are not lower-case letters": not (
            axes.isascii() and axes.isalpha() and axes.islower()
        ),
        "names an axis twice": len(set(axes)) != len(axes),
        "has no tokens axis 's'": "s" not in axes,
        "has no head_dim axis 'd'": "d" not in axes,
        "does not end in head_dim 'd'; move that axis to the end": not axes.endswith("d"),
    }
    for problem, is_present in problems.items():
        if is_present:
            raise RopeError(f"{name}={axes!r} {problem}; write for example {example}")
