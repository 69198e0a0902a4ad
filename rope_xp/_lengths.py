"""Lengths of axes, which some libraries do not know before they compute."""

from __future__ import annotations

from collections.abc import Sequence

from rope_xp._errors import RopeError


def same_length(n: int | None, m: int | None) -> bool:
    """Return whether two axes are equally long, as far as it is known.

    The standard has None for a length that is not known yet, and so has ndonnx; dask has NaN.
    """
    if n is None or m is None:
        return True
    return n == m or (isinstance(n, float) and isinstance(m, float))


def check_known(argument: str, lengths: Sequence[int | None]) -> None:
    """Check that lengths are numbers. Asked where they matter."""
    if any(n is None or isinstance(n, float) for n in lengths):
        msg = (
            f"{argument} has an axis whose length is not known before it is computed, and it is "
            "needed here; give it a number, in dask by compute_chunk_sizes()"
        )
        raise RopeError(msg)
