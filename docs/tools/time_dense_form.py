"""Time the two forms of RoFormer's rotation.

The dense form multiplies the heads of each token by the matrix of its position (eq. 15), the other
form multiplies element by element (eq. 34). 512 tokens of 8 heads, float32 in numpy. Matrices and
tables are made before the clock starts.
"""

from __future__ import annotations

import numpy as np
from measured_group import Rows, shortest
from numpy.typing import NDArray

import rope_xp
from rope_xp._bench import targets

TOKENS, HEADS = 512, 8
HEAD_DIMS = (32, 64, 128, 256)


def dense(cos: NDArray[np.float32], sin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the matrices of eq. 15, (tokens, head_dim, head_dim), of tables (tokens, pairs)."""
    tokens, pairs = cos.shape
    matrices = np.zeros((tokens, 2 * pairs, 2 * pairs), np.float32)
    first, second = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    matrices[:, first, first] = matrices[:, second, second] = cos
    matrices[:, first, second], matrices[:, second, first] = -sin, sin
    return matrices


def rows() -> Rows:
    """Return milliseconds of both forms in plain numpy, by head_dim."""
    target, found = targets.find("numpy:cpu"), {}
    with rope_xp.use_path("portable"):  # eq. 34 in plain numpy, as the dense form is
        for head_dim in HEAD_DIMS:
            random = np.random.default_rng(0)
            x = random.standard_normal((TOKENS, HEADS, head_dim), dtype=np.float32)
            cos, sin = rope_xp.RoPE().cos_sin(np.arange(TOKENS), head_dim)
            matrices = dense(cos, sin)
            calls = {
                # Row vectors, so R x is x times R transposed.
                "dense": lambda x=x, matrices=matrices: (x @ matrices.mT,),
                "eq. 34": lambda x=x, cos=cos, sin=sin: (rope_xp.apply_tables(x, cos, sin),),
            }
            results = [call()[0] for call in calls.values()]
            np.testing.assert_allclose(*results, rtol=0, atol=2e-6)
            found[str(head_dim)] = shortest(target, calls, "ms")
    return found
