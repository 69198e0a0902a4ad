"""What the benchmarks share.

Parameters are plain strings that never depend on what is installed, so that results of two
machines can be laid side by side; what is absent is skipped in setup, with the reason.

asv takes every rise for a loss: its regressions, ``asv continuous`` and its graphs know of no
figure that is better when larger. So ratios here are times over times, and smaller is better:
"2 copies" is half the speed of a copy. The pages and the command line say it the other way round,
"0.5 times as fast as a copy".

Each benchmark has a version. asv drops the history of one whose version changes, or whose code does
where it has none: raise it when a figure comes to mean something else.

asv_runner 0.3.2 runs setup again before every timed call, and with a setup it times calls one by
one. So inputs are memoised, and a ``track_`` loops over whatever takes microseconds.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rope_xp._bench import clock, formulas, inputs, targets
from rope_xp._bench.inputs import CannotMeasure
from rope_xp._core.typing import Array, Namespace

TARGETS = list(targets.NAMES)
TORCH = [name for name in TARGETS if name.startswith("torch")]
JAX = [name for name in TARGETS if name.startswith("jax")]
WRITEABLE = [name for name in TARGETS if not name.startswith(("jax", "dask"))]
LAYOUTS = ["half", "interleaved"]
DTYPES = list(inputs.DTYPES)

QUICK = "ROPE_XP_BENCH_QUICK" in os.environ
"""Whether to see that benchmarks run, rather than what they find."""
TOKENS = 16 if QUICK else 4096
REPEAT = 1 if QUICK else 9
LOOPS = (1, 1) if QUICK else (500, 9)
"""Calls in a row, and rounds of them, of what takes microseconds."""
POSITION = 5000
"""Of a single token."""


@contextmanager
def skipping() -> Iterator[None]:
    """Tell asv to skip what is absent. Programs that ask for nothing absent need no asv."""
    try:
        yield
    except CannotMeasure as error:
        from asv_runner.benchmarks.mark import SkipNotImplemented

        raise SkipNotImplemented(str(error)) from error


def case(target: str, tokens: int = TOKENS, start: int = 0, dtype: str = "float32") -> inputs.Case:
    """Return inputs, or have them skipped."""
    with skipping():
        return inputs.case(target, tokens, start, dtype)


def over(ours: float, other: float) -> float:
    """Return a ratio, with the digits that mean something."""
    return round(ours / other, 3)


def best_microseconds(
    target: targets.Target, action: clock.Action, loops: int, rounds: int
) -> float:
    """Return the best round of ``rounds_of_microseconds``."""
    return min(clock.rounds_of_microseconds(target, action, loops, rounds))


def rotate_usual(xp: Namespace, x: Array, positions: Array, base: float) -> Array:
    """Rotate x, (batch, tokens, heads, head_dim), by the formula of Hugging Face's Llama."""
    # Its angles are off by some 2**-24 of themselves: 0.06 at position 10**6.
    tables = formulas.usual_cos_sin(xp, positions, x.shape[-1], base)
    return formulas.usual_apply_tables(xp, x, *tables)
