"""Time the two forms of RoFormer's rotation, and print what they take as a Markdown table.

    python docs/tools/time_dense_form.py

The dense form multiplies the heads of each token by the matrix of its position (eq. 15), the other
form multiplies element by element (eq. 34). 512 tokens of 8 heads, float32 in numpy. Matrices and
tables are made before the clock starts. Both forms run in turn, and the fastest run of each counts.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

import rope_xp

TOKENS, HEADS, RUNS = 512, 8, 100
HEAD_DIMS = (32, 64, 128, 256)


def dense(cos: NDArray[np.float32], sin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the matrices of eq. 15, (tokens, head_dim, head_dim), of tables (tokens, pairs)."""
    tokens, pairs = cos.shape
    matrices = np.zeros((tokens, 2 * pairs, 2 * pairs), np.float32)
    first, second = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    matrices[:, first, first] = matrices[:, second, second] = cos
    matrices[:, first, second], matrices[:, second, first] = -sin, sin
    return matrices


def measure(head_dim: int) -> tuple[float, float, int, int]:
    """Return seconds of the dense form and of eq. 34, then bytes of their matrices and tables."""
    x = np.random.default_rng(0).standard_normal((TOKENS, HEADS, head_dim), dtype=np.float32)
    cos, sin = rope_xp.RoPE().cos_sin(np.arange(TOKENS), head_dim)
    matrices = dense(cos, sin)
    forms = (
        lambda: x @ matrices.mT,  # row vectors, so R x is x times R transposed
        lambda: rope_xp.apply_tables(x, cos, sin),
    )
    np.testing.assert_allclose(forms[0](), forms[1](), rtol=0, atol=2e-6)
    seconds = [[], []]
    for _ in range(RUNS):
        for form, taken in zip(forms, seconds, strict=True):
            start = time.perf_counter()
            form()
            taken.append(time.perf_counter() - start)
    return min(seconds[0]), min(seconds[1]), matrices.nbytes, cos.nbytes + sin.nbytes


def table() -> str:
    """Return the measurements as a Markdown table."""
    lines = [
        "| head_dim | dense, ms | eq. 34, ms | times as fast | matrices, MiB | tables, MiB |",
        "|---|---|---|---|---|---|",
    ]
    with rope_xp.use_path("portable"):  # eq. 34 in plain numpy, as the dense form is
        for head_dim in HEAD_DIMS:
            slow, fast, matrices, tables = measure(head_dim)
            lines.append(
                f"| {head_dim} | {slow * 1e3:.2g} | {fast * 1e3:.2g} | {slow / fast:.2g} "
                f"| {matrices / 2**20:g} | {tables / 2**20:g} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
