"""What rope_xp is tested against: written apart from it, in other arithmetic, slow and plain."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np

# Both are promised, with a proof in docs/accuracy.md: two digits 1.74e-7, three 3.43e-7.
BELOW_2_22 = 2.4e-7
BELOW_2_31 = 4e-7


def pair_indices(layout: str, r: int) -> tuple[tuple[list[int], list[int]], ...]:
    """Return for each layout where the two of each pair are read and written."""
    neighbours = (list(range(0, r, 2)), list(range(1, r, 2)))
    halves = (list(range(r // 2)), list(range(r // 2, r)))
    return {
        "interleaved": (neighbours, neighbours),
        "half": (halves, halves),
        "interleaved_to_half": (neighbours, halves),
    }[layout]


def rotate_complex(
    x: np.ndarray, angles: np.ndarray, layout: str, offset: int = 0, factor: float = 1.0
) -> np.ndarray:
    """Rotate by complex multiplication in float64 (arXiv 2104.09864, eq. 12-13).

    x (..., d); angles broadcast to (..., r/2).
    """
    r = 2 * angles.shape[-1]
    (a, b), (to_a, to_b) = pair_indices(layout, r)
    out = x.astype(np.float64)
    slice_in, slice_out = (y[..., offset : offset + r] for y in (x.astype(np.float64), out))
    z = (slice_in[..., a] + 1j * slice_in[..., b]) * (factor * np.exp(1j * angles))
    slice_out[..., to_a], slice_out[..., to_b] = z.real, z.imag
    return out


def exact_frequencies(base: float, r: int, pairs: Sequence[int] = ()) -> tuple[Any, ...]:
    """Return base**(-2 i / r) with fifty digits, of the given pairs or all."""
    with mpmath.workdps(50):
        return tuple(mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / r) for i in pairs or range(r // 2))


@lru_cache
def exact_cos_sin(
    positions: tuple[float, ...], frequencies: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin (tokens, pairs) of products with fifty digits."""
    with mpmath.workdps(50):
        angles = [[mpmath.mpf(p) * mpmath.mpf(f) for f in frequencies] for p in positions]
        cos, sin = (
            [[float(f(a)) for a in row] for row in angles] for f in (mpmath.cos, mpmath.sin)
        )
    return np.array(cos), np.array(sin)


def true_cos_sin(
    positions: Iterable[float], base: float, r: int, pairs: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of position * base**(-2 i / r)."""
    return exact_cos_sin(tuple(positions), exact_frequencies(base, r, pairs))


def ulps(
    result: np.ndarray, reference: np.ndarray, x: np.ndarray, layout: str, inverse: bool = False
) -> float:
    """Return the largest distance in ulp of max(|x1|, |x2|), over the pairs of whole heads.

    The ulp of the result itself is no measure: x1 cos a - x2 sin a may cancel to anything.
    """
    (a, b), (to_a, to_b) = pair_indices(layout, x.shape[-1])[:: -1 if inverse else 1]
    computed = np.float64 if x.dtype == np.float64 else np.float32
    size = np.maximum(np.abs(x[..., a]), np.abs(x[..., b])).astype(computed)
    unit = np.spacing(np.maximum(size, np.finfo(computed).tiny)).astype(np.float64)
    distance = np.abs(result.astype(np.float64) - reference.astype(np.float64))
    worst = np.maximum(distance[..., to_a], distance[..., to_b]) / unit
    return float(worst.max()) if worst.size else 0.0
