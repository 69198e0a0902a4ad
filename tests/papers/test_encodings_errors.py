"""Errors of encodings."""

from functools import partial

import numpy as np
import pytest

from rope_xp import RopeError
from rope_xp.papers import encodings

Q, TABLE = np.zeros((2, 5, 4, 6)), np.zeros((7, 6))
W, V, V_TABLE = np.zeros((2, 4, 5, 6)), np.zeros((2, 6, 2, 3)), np.zeros((7, 3))
BY_TOKENS = np.zeros((4, 4, 6))
shaw, shaw_values, transformer_xl = encodings.shaw, encodings.shaw_values, encodings.transformer_xl
of_shaw = partial(shaw, Q, Q, TABLE)
SHAPES = [
    (shaw, (Q[..., :0], Q[..., :0], TABLE), r"q has shape \(2, 5, 4, 0\); .*any but 0\)"),
    (shaw, (Q, Q[:, :3], TABLE), "pass positions and k_positions"),
    (shaw, (Q, Q, TABLE[:6]), r"6 entries.*2 \* clip \+ 1"),
    (of_shaw, {"scale": 0.0}, "scale must be positive"),
    (of_shaw, {"positions": [0, 1]}, r"positions has shape \(2,\); it must .* = \(2, 5\)"),
    (of_shaw, {"positions": 3}, r"a single number for 5 tokens"),
    (shaw_values, (W[:, :3], V, V_TABLE), "weights has 3 heads and v 2; .* a multiple"),
    (shaw_values, (W, V[0, 0], V_TABLE), r"v has shape \(2, 3\); it must be"),
    (shaw_values, (W[..., :5], V[:, :5], V_TABLE[:, :2]), r"_values has shape \(7, 2\)"),
    (transformer_xl, (Q, Q, TABLE[:3], TABLE[:4], BY_TOKENS), r"u has .*\(3, 6\).*\(4, 6\)"),
    (transformer_xl, (Q, Q, TABLE[:4], TABLE[:4], np.zeros((4, 6, 3))), "w_relative must be even"),
    (encodings.t5_bias, (Q, Q, np.zeros((3, 4))), "num_buckets must be >= 4"),
    (encodings.t5_buckets, ([1], 32, 8), "must exceed the 8"),
    (encodings.t5_buckets, ([1], 32, 2**31), "below 2"),
    (encodings.deberta, (Q, Q, *[np.zeros((5, 4, 6))] * 2), r"clip entries, an even number"),
    (encodings.deberta, (Q, Q, BY_TOKENS, BY_TOKENS[:2]), r"relative_k .* here \(4, 4, 6\)"),
    (encodings.sinusoidal, ([0], 5), "dim must be even"),
    (encodings.sinusoidal, ([2**31], 4), "positions"),
]
TYPES = [
    (shaw, ([1.0], Q, TABLE), "q is a list"),
    (shaw, (Q, Q, TABLE.astype(int)), "convert it to one of .*float32"),
    (of_shaw, {"scale": "1"}, "scale must be a number"),
    (of_shaw, {"positions": np.arange(5) + 0.5}, "positions must hold integers"),
    (shaw_values, (W > 0, V, V_TABLE), "weights is .* bool; convert it to one of"),
    (encodings.t5_buckets, ([0.5],), "relative must hold integers"),
    (encodings.sinusoidal, ([0], 4.0), "dim must be an integer"),
]


@pytest.mark.parametrize(
    ("error", "function", "arguments", "message"),
    [
        (error, *call)
        for error, calls in ((RopeError, SHAPES), (TypeError, TYPES))
        for call in calls
    ],
)
def test_encodings_refuse_arrays_and_options_that_do_not_fit(error, function, arguments, message):
    positional, options = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    with pytest.raises(error, match=message):
        function(*positional, **options)


def test_encodings_refuse_arrays_of_two_libraries():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a torch array and k a numpy array"):
        encodings.shaw(torch.tensor(Q), Q, TABLE)
    with pytest.raises(TypeError, match="q is a numpy array and positions a torch array"):
        encodings.shaw(Q, Q, TABLE, positions=torch.arange(5))
