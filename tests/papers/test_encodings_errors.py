"""What encodings refuse, in which words, and that nobody pays for them unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rope_xp import RopeError
from rope_xp.papers import encodings

Q = np.zeros((2, 5, 4, 6))
TABLE = np.zeros((7, 6))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: encodings.shaw(Q[0, 0], Q[0, 0], TABLE),
            RopeError,
            r"q has shape \(4, 6\); it needs",
        ),
        (lambda: encodings.shaw(Q, Q[..., :5], TABLE), RopeError, "must have equal head_dim"),
        (
            lambda: encodings.shaw(Q, Q[:, :, :3], TABLE),
            RopeError,
            "q has 4 heads and k 3; those of q must",
        ),
        (lambda: encodings.shaw(Q, Q[:1], TABLE), RopeError, "must have equal batch axes"),
        (lambda: encodings.shaw(Q[..., :0], Q[..., :0], TABLE), RopeError, "must not be empty"),
        (lambda: encodings.shaw(Q, Q[:, :, :0], TABLE), RopeError, "q has 4 heads and k 0"),
        (lambda: encodings.shaw(Q, Q[:, :3], TABLE), RopeError, "give positions and k_positions"),
        (lambda: encodings.shaw(Q, Q, TABLE[:6]), RopeError, r"6 entries.*2 \* clip \+ 1"),
        (lambda: encodings.shaw(Q, Q, TABLE[:, :5]), RopeError, r"\(7, 5\); .* here \(any, 6\)"),
        (lambda: encodings.shaw(Q, Q, TABLE[:0]), RopeError, r"\(0, 6\)"),
        (lambda: encodings.shaw(Q, Q, TABLE, scale=0.0), RopeError, "scale must be positive"),
        (lambda: encodings.shaw(Q, Q, TABLE, scale="1"), TypeError, "scale must be a number"),
        (lambda: encodings.shaw(Q, Q, TABLE, positions=[0, 1]), RopeError, r"\(tokens,\) = \(5,\)"),
        (
            lambda: encodings.shaw(Q, Q, TABLE, positions=np.arange(5) + 0.5),
            TypeError,
            "positions must hold integers",
        ),
        (lambda: encodings.shaw([1.0], Q, TABLE), TypeError, "q is a list"),
        (lambda: encodings.shaw(Q, Q, [[0.0]]), TypeError, "relative_keys is a list"),
        (lambda: encodings.shaw(Q.astype(int), Q, TABLE), TypeError, "q is a numpy array"),
        (lambda: encodings.shaw(Q, Q, TABLE.astype(int)), TypeError, "must hold .*float32"),
        (lambda: encodings.shaw(Q, Q.astype("f4"), TABLE), TypeError, "float64 and k float32"),
        (
            lambda: encodings.shaw_values(np.zeros((2, 4, 5, 4)), Q, TABLE),
            RopeError,
            r"here \(2, 4 or a multiple, any, 5\)",
        ),
        (
            lambda: encodings.transformer_xl(Q, Q, TABLE[:3], TABLE[:4], np.zeros((4, 6, 2))),
            RopeError,
            r"u has shape \(3, 6\).*\(4, 6\)",
        ),
        (
            lambda: encodings.transformer_xl(Q, Q, TABLE[:4], TABLE[:4], np.zeros((4, 6, 3))),
            RopeError,
            "last axis of w_relative must be even",
        ),
        (lambda: encodings.t5_bias(Q, Q, np.zeros((3, 4))), RopeError, "num_buckets must be 4"),
        (lambda: encodings.t5_bias(Q, Q, np.zeros((32, 3))), RopeError, r"here \(any, 4\)"),
        (lambda: encodings.t5_buckets([1], 32, 8), RopeError, "max_distance must exceed the 8"),
        (lambda: encodings.t5_buckets([1], 1, 8, False), RopeError, "must be 2 at least"),
        (lambda: encodings.t5_buckets([0.5]), TypeError, "relative must hold integers"),
        (lambda: encodings.tupe(Q, Q, Q[:, :4], Q), RopeError, "position_q has shape"),
        (
            lambda: encodings.deberta(Q, Q, np.zeros((5, 4, 6)), np.zeros((5, 4, 6))),
            RopeError,
            r"2 \* clip entries, an even number",
        ),
        (
            lambda: encodings.deberta(Q, Q, np.zeros((4, 4, 6)), np.zeros((6, 4, 6))),
            RopeError,
            "relative_q has 4 entries and relative_k 6",
        ),
        (lambda: encodings.multiplicative(Q, Q, np.ones((7, 3))), RopeError, r"\(any, 4\)"),
        (lambda: encodings.sinusoidal([0], 5), RopeError, "dim must be even"),
        (lambda: encodings.sinusoidal([0], 4.0), TypeError, "dim must be an integer"),
        (lambda: encodings.sinusoidal([2**31], 4), RopeError, "positions"),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_libraries_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    q = torch.zeros(Q.shape, dtype=torch.float64)
    with pytest.raises(TypeError, match="q is a torch array and k a numpy array"):
        encodings.shaw(q, Q, TABLE)
    with pytest.raises(TypeError, match="q is a torch array and relative_keys a numpy array"):
        encodings.shaw(q, q, TABLE)
    with pytest.raises(TypeError, match="q is a numpy array and positions a torch array"):
        encodings.shaw(Q, Q, TABLE, positions=torch.arange(5))


def test_the_core_does_not_import_them() -> None:
    import subprocess
    import sys

    code = "import rope_xp, sys; print([m for m in sys.modules if m.startswith('rope_xp.papers')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
