"""Axis names: one letter an axis, ``s`` tokens, ``h`` heads, ``d`` head_dim, others batch."""

from rope_xp._arguments import messages
from rope_xp._contract.call import Axes

_BATCH = "bcefgijklmno"


def _make(names: str) -> Axes:
    tokens = names.index("s")
    batch = tuple(i for i, name in enumerate(names) if name not in "shd")
    after_heads = len(names) - names.index("h") - 2 if "h" in names else len(names)
    return Axes(
        names=names,
        tokens=tokens,
        heads=names.index("h") if "h" in names else None,
        batch=batch,
        in_order=not batch or batch[-1] < tokens,
        after_heads=after_heads,
        insert_heads=(..., None, *(slice(None),) * (after_heads + 1)),
    )


def default_names(ndim: int) -> str:
    """Return the axes assumed where the caller names none: batch axes, then s, h, d."""
    return "sd" if ndim == 2 else _BATCH[: ndim - 3] + "shd"


# Looked up on every call. Never written to after import: torch.compile would guard on a change.
_DEFAULT = {ndim: _make(default_names(ndim)) for ndim in range(2, 13)}
_NAMED = {
    names: _make(names) for names in ("bshd", "bhsd", "sbhd", "shd", "hsd", "sd", "bsd", "sbd")
}


def parse_axes(axes: str | None, ndim: int, argument: str) -> Axes:
    """Return where the axes of an ndim-dimensional array lie."""
    if axes is None:
        if ndim < 2:
            raise messages.too_few_axes(argument, ndim)
        if ndim not in _DEFAULT:
            raise messages.too_many_axes(argument, ndim)
        return _DEFAULT[ndim]
    found = _NAMED.get(axes) if isinstance(axes, str) else None
    if found is None:
        messages.check_axes(axes)
        found = _make(axes)
    if len(found.names) != ndim:
        raise messages.axes_do_not_fit(axes, argument, ndim)
    return found
