"""Build the inputs of all measurements: q and k of one attention layer of Llama-3-8B."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rope_xp._bench import targets
from rope_xp._core.typing import Array

DTYPES = ("float32", "bfloat16")
BASE = 500_000.0
HEADS = (32, 8)
HEAD_DIM = 128


class CannotMeasure(Exception):  # noqa: N818  # a skip, and no error
    """The reason why something cannot be measured here."""


class Case(NamedTuple):
    target: targets.Target
    q: Array
    k: Array
    positions: Array


def numpy_dtype(name: str) -> np.dtype:
    """Return a dtype by its name, or raise CannotMeasure."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise CannotMeasure("ml_dtypes is not installed (pip install ml_dtypes)") from error
    bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


# One case at a time: it may be as large as memory allows.
@lru_cache(maxsize=1)
def case(
    name: str, tokens: int, start: int = 0, dtype: str = "float32", heads: tuple[int, int] = HEADS
) -> Case:
    """Return the same inputs for every call, from position ``start``; or raise CannotMeasure."""
    target = targets.find(name)
    if isinstance(target, str):
        raise CannotMeasure(f"{name}: {target}")
    random = np.random.default_rng(0)

    def draw(heads: int) -> Array:
        host = random.standard_normal((1, tokens, heads, HEAD_DIM), np.float32)
        if target.library == "torch":  # its own bfloat16 rounds as ml_dtypes does
            xp = target.backend.xp
            return xp.astype(target.put(host), getattr(xp, dtype))
        return target.put(host.astype(numpy_dtype(dtype)))

    # As arange of the library counts.
    integer = np.int32 if target.library == "jax" else np.int64
    positions = target.put(np.arange(start, start + tokens, dtype=integer))
    return Case(target, draw(heads[0]), draw(heads[1]), positions)
