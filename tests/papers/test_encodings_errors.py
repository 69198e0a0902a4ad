"""What encodings refuse, in which words, and that nobody pays for them unasked."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from rope_xp import RopeError
from rope_xp.papers.encodings import (
    deberta,
    multiplicative,
    shaw,
    shaw_values,
    sinusoidal,
    t5_bias,
    t5_buckets,
    transformer_xl,
    tupe,
)

Q = np.zeros((2, 5, 4, 6))
TABLE = np.zeros((7, 6))


W, V, V_TABLE = np.zeros((2, 4, 5, 6)), np.zeros((2, 6, 2, 3)), np.zeros((7, 3))
CALLS = {
    shaw: [
        ((Q[0, 0], Q[0, 0], TABLE), RopeError, r"q has shape \(4, 6\); it needs"),
        ((Q[..., :0], Q[..., :0], TABLE), RopeError, "must not be empty"),
        ((Q, Q[:, :3], TABLE), RopeError, "give positions and k_positions"),
        ((Q, Q, TABLE[:6]), RopeError, r"6 entries.*2 \* clip \+ 1"),
        ((Q, Q, TABLE[:, :5]), RopeError, r"\(7, 5\); .* here \(any, 6\)"),
        ((Q, Q, TABLE[:0]), RopeError, r"\(0, 6\)"),
        (([1.0], Q, TABLE), TypeError, "q is a list"),
        ((Q, Q, [[0.0]]), TypeError, "relative_keys is a list"),
        ((Q.astype(int), Q, TABLE), TypeError, "q is a numpy array"),
        ((Q, Q, TABLE.astype(int)), TypeError, "must hold .*float32"),
        ((Q, Q.astype("f4"), TABLE), TypeError, "float64 and k float32"),
    ],
    partial(shaw, Q, Q, TABLE): [
        ({"scale": 0.0}, RopeError, "scale must be positive"),
        ({"scale": "1"}, TypeError, "scale must be a number"),
        ({"positions": [0, 1]}, RopeError, r"\(tokens,\) = \(5,\)"),
        ({"positions": 7}, RopeError, r"positions has shape \(\); it must be \(tokens,\) = \(5,"),
        ({"positions": np.arange(5) + 0.5}, TypeError, "positions must hold integers"),
    ],
    shaw_values: [
        ((W[:, :3], V, V_TABLE), RopeError, r"weights has shape \(2, 3, 5, 6\)"),
        ((W[:1], V, V_TABLE), RopeError, r"here \(2, 2 or a multiple, any, 6\)"),
        ((W[0], V, V_TABLE), RopeError, r"weights has shape \(4, 5, 6\)"),
        ((W[0, 0], V[0], V_TABLE), RopeError, r"here \(2 or a multiple, any, 6\)"),
        ((W, V[0, 0], V_TABLE), RopeError, r"v has shape \(2, 3\); it needs"),
        ((W, V[..., :0], V_TABLE), RopeError, "head_dim, must not be empty"),
        ((W, V[:, :, :0], V_TABLE), RopeError, "here .*0 or a multiple"),
        ((W[..., :5], V[:, :5], V_TABLE[:, :2]), RopeError, r"_values has shape \(7, 2\)"),
        ((W, V, V_TABLE), RopeError, "give positions and k_positions"),
        ((W, V.astype("f4"), V_TABLE), TypeError, "weights is float64 and v float32"),
        ((W > 0, V, V_TABLE), TypeError, "weights is .* bool; it must hold .*Convert it"),
    ],
    transformer_xl: [
        (
            (Q, Q, TABLE[:3], TABLE[:4], np.zeros((4, 6, 2))),
            RopeError,
            r"u has .*\(3, 6\).*\(4, 6\)",
        ),
        ((Q, Q, TABLE[:4], TABLE[:4], np.zeros((4, 6, 3))), RopeError, "w_relative must be even"),
    ],
    t5_bias: [
        ((Q, Q, np.zeros((3, 4))), RopeError, "num_buckets must be 4"),
        ((Q, Q, np.zeros((32, 3))), RopeError, r"here \(any, 4\)"),
    ],
    t5_buckets: [
        (([1], 32, 8), RopeError, "max_distance must exceed the 8"),
        (([1], 32, 2**31), RopeError, r"below 2\*\*31"),
        (([1], 1, 8, False), RopeError, "must be 2 at least"),
        (([0.5],), TypeError, "relative must hold integers"),
    ],
    tupe: [((Q, Q, Q[:, :4], Q), RopeError, "position_q has shape")],
    deberta: [
        (
            (Q, Q, np.zeros((5, 4, 6)), np.zeros((5, 4, 6))),
            RopeError,
            r"clip entries, an even number",
        ),
        ((Q, Q, np.zeros((4, 4, 6)), np.zeros((6, 4, 6))), RopeError, "4 entries and relative_k 6"),
    ],
    multiplicative: [((Q, Q, np.ones((7, 3))), RopeError, r"\(any, 4\)")],
    sinusoidal: [
        (([0], 5), RopeError, "dim must be even"),
        (([0], 4.0), TypeError, "dim must be an integer"),
        (([2**31], 4), RopeError, "positions"),
    ],
}


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [(function, *call) for function, calls in CALLS.items() for call in calls],
)
def test_refused(function: Any, arguments: Any, error: type[Exception], message: str) -> None:
    positional, options = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    with pytest.raises(error, match=message):
        function(*positional, **options)


def test_libraries_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    q = torch.zeros(Q.shape, dtype=torch.float64)
    with pytest.raises(TypeError, match="q is a torch array and k a numpy array"):
        shaw(q, Q, TABLE)
    with pytest.raises(TypeError, match="q is a torch array and relative_keys a numpy array"):
        shaw(q, q, TABLE)
    with pytest.raises(TypeError, match="q is a numpy array and positions a torch array"):
        shaw(Q, Q, TABLE, positions=torch.arange(5))


@pytest.mark.parametrize("there", range(3))
def test_devices_are_not_mixed(there: int) -> None:
    xp = pytest.importorskip("array_api_strict")
    devices = [xp.Device("device1" if i == there else "CPU_DEVICE") for i in range(3)]

    def arrays(*shapes: tuple[int, ...]) -> list[Any]:
        return [
            xp.zeros(shape, dtype=xp.float32, device=device)
            for shape, device in zip(shapes, devices, strict=True)
        ]

    second = {0: "k", 1: "k", 2: "relative_keys"}[there]
    with pytest.raises(RopeError, match=f"q is on .* and {second} on .*; move one of them"):
        shaw(*arrays((5, 2, 3), (5, 2, 3), (7, 3)))
    second = {0: "v", 1: "v", 2: "relative_values"}[there]
    with pytest.raises(RopeError, match=f"weights is on .* and {second} on .*; move one"):
        shaw_values(*arrays((2, 5, 5), (5, 2, 3), (7, 3)))


def test_positions_lie_where_the_arrays_do() -> None:
    xp = pytest.importorskip("array_api_strict")
    q, table = xp.zeros((5, 2, 3), dtype=xp.float32), xp.zeros((7, 3), dtype=xp.float32)
    at = xp.arange(5, device=xp.Device("device1"))
    with pytest.raises(RopeError, match=r"is on .* and positions on .*device1.*; move one of them"):
        shaw(q, q, table, positions=at)


def test_the_core_does_not_import_them() -> None:
    code = "import rope_xp, sys; assert 'rope_xp.papers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
