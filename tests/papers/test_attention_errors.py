"""Errors of attention."""

import numpy as np
import pytest
from support.attention_oracles import FUNCTIONS

from rope_xp import RoPE, RopeError
from rope_xp.papers.attention import attention, global_pointer, linear_attention, scores

torch = pytest.importorskip("torch")
X = np.ones((2, 5, 4, 8), np.float32)


@pytest.mark.parametrize(
    ("i", "x", "error", "message"),
    [
        (0, X.tolist(), TypeError, "q is a list; expected an array"),
        (0, X.astype(int), TypeError, "q is a numpy array .* int64; convert it to one of bfloat16"),
        (0, X[0, 0], RopeError, r"q has shape \(4, 8\); .*one head .*q\[\.\.\., N"),
        (0, X[..., :0], RopeError, r"q has .* \(batch..., tokens, heads, head_dim\), .*but 0\)"),
        (1, X[:1], RopeError, r"k has shape \(1, 5, 4, 8\); .* here \(2, any, any, 8\)"),
        (1, X[:, :, :3], RopeError, "q has 4 heads and k 3; q must have a multiple"),
        (2, X[:, :3], RopeError, r"v has shape .* here \(2, 5, 4, any\)"),
    ],
)
def test_functions_refuse_arrays_that_do_not_fit(i, x, error, message):
    arrays = [X, X, X]
    arrays[i] = x
    for function, n in FUNCTIONS:
        if i < n:
            with pytest.raises(error, match=message):
                function(*arrays[:n], rope=RoPE())


@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_functions_refuse_arrays_of_two_libraries_and_positions_without_a_rope(function, n):
    x, at, rest = torch.ones(2, 5, 4, 8), np.arange(5), [X] * (n - 1)
    with pytest.raises(TypeError, match="q is a numpy array and k a torch array; convert one"):
        function(X, *[x] * (n - 1))
    with pytest.raises(RopeError, match="q is on cpu and [kv] on meta; move one of them"):
        function(*[x] * (n - 1), x.to("meta"))
    with pytest.raises(RopeError, match="positions needs a rope.*pass rope=rope_xp.RoPE()"):
        function(X, *rest, at)
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got 'half'"):
        function(X, *rest, at, "half")
    with pytest.raises(RopeError, match=r"positions has shape \(4,\)"):
        function(X, *rest, at[:4], RoPE())


MASK = np.ones(5, bool)
SHORT = {"k": X[:, :3]}
OPTIONS = [
    ("k_positions needs a rope", RopeError, scores, {"k_positions": np.arange(5)}),
    ("pass k_positions", RopeError, scores, SHORT | {"rope": RoPE()}),
    (r"with the tokens of q, here \(2, 5, any", RopeError, global_pointer, SHORT),
    ("scale must be positive and finite", RopeError, scores, {"scale": float("nan")}),
    ("scale must be a number", TypeError, scores, {"scale": "0.5"}),
    ("mask is a numpy.*must be boolean.*mask == 0", TypeError, attention, {"mask": MASK * 1.0}),
    ("q is a numpy array and mask a torch", TypeError, attention, {"mask": torch.tensor(MASK)}),
    (r"k tokens\) = \(2, 4, 5, 5\)", RopeError, attention, {"mask": np.ones((2, 5, 5), bool)}),
    (r"tokens\) = \(2, 5\)", RopeError, global_pointer, {"mask": np.ones((3, 5), bool)}),
    (
        "softmax of k over all tokens.*cannot be causal; use 'elu'",
        *(RopeError, linear_attention, {"feature_map": "softmax", "causal": True}),
    ),
]
MAPS = [
    ("feature_map must be 'elu', 'softmax' or two .*'relu'", RopeError, "relu"),
    ("'softmax' or two functions", TypeError, (np.exp, "elu")),
    (r"the result of phi has.*\(2, 5, 4, any\)", RopeError, (lambda x: x.sum(-1), np.exp)),
    ("the result of varphi is a float; expected", TypeError, (np.exp, lambda x: 1.0)),
    ("q is a numpy array and the result of phi a torch array", TypeError, (torch.tensor, np.exp)),
]
OPTIONS += [(*expected, linear_attention, {"feature_map": maps}) for *expected, maps in MAPS]


@pytest.mark.parametrize(("message", "error", "function", "options"), OPTIONS)
def test_functions_refuse_options_that_do_not_fit(message, error, function, options):
    values = {"v": X} if function in (attention, linear_attention) else {}
    with pytest.raises(error, match=message):
        function(**{"q": X, "k": X} | values | options)
