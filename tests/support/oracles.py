"""What rope_xp is tested against: written apart from it, in other arithmetic, slow and plain."""

from __future__ import annotations

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
    part = x[..., offset : offset + r].astype(np.float64)
    z = (part[..., a] + 1j * part[..., b]) * (factor * np.exp(1j * angles))
    out = x.astype(np.float64).copy()
    turned = np.empty_like(part)
    turned[..., to_a], turned[..., to_b] = z.real, z.imag
    out[..., offset : offset + r] = turned
    return out


def dense_matrix(angles: np.ndarray) -> np.ndarray:
    """Return the block-diagonal matrix of one position (arXiv 2104.09864, eq. 15)."""
    r = 2 * len(angles)
    matrix = np.zeros((r, r))
    for i, a in enumerate(angles):
        block = [[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
    return matrix


def true_cos_sin(
    positions: list[int] | list[float], base: float, r: int, pairs: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin of position * base**(-2 i / r), by mpmath with fifty digits."""
    pairs = list(range(r // 2)) if pairs is None else pairs
    with mpmath.workdps(50):
        frequencies = [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / r) for i in pairs]
        angles = [[mpmath.mpf(p) * f for f in frequencies] for p in positions]
        cos = [[float(mpmath.cos(a)) for a in row] for row in angles]
        sin = [[float(mpmath.sin(a)) for a in row] for row in angles]
    return np.array(cos), np.array(sin)


def ulps(result: np.ndarray, reference: np.ndarray, x: np.ndarray, layout: str) -> float:
    """Return the largest distance in ulp of max(|x1|, |x2|), over the pairs of whole heads.

    The ulp of the result itself is no measure: x1 cos a - x2 sin a may cancel to anything.
    """
    (a, b), (to_a, to_b) = pair_indices(layout, x.shape[-1])
    computed = np.float64 if x.dtype == np.float64 else np.float32
    size = np.maximum(np.abs(x[..., a]), np.abs(x[..., b])).astype(computed)
    unit = np.spacing(np.maximum(size, np.finfo(computed).tiny)).astype(np.float64)
    distance = np.abs(result.astype(np.float64) - reference.astype(np.float64))
    worst = np.maximum(distance[..., to_a], distance[..., to_b]) / unit
    return float(worst.max()) if worst.size else 0.0
