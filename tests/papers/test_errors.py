"""Errors of attention and encodings."""

from functools import partial

import numpy as np
import pytest
from support.attention_oracles import FUNCTIONS

from rope_xp import RoPE, RopeError
from rope_xp.papers import encodings
from rope_xp.papers.attention import attention, global_pointer, linear_attention, scores
from rope_xp.papers.encodings import deberta, shaw_values, sinusoidal, t5_buckets, transformer_xl

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
def test_attention_refuses_arrays_that_do_not_fit(i, x, error, message):
    arrays = [X, X, X]
    arrays[i] = x
    for function, n in FUNCTIONS:
        if i < n:
            with pytest.raises(error, match=message):
                function(*arrays[:n], rope=RoPE())


@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_attention_refuses_arrays_of_two_libraries_and_positions_without_a_rope(function, n):
    x, at, rest = torch.ones(2, 5, 4, 8), np.arange(5), [X] * (n - 1)
    with pytest.raises(TypeError, match="q is a numpy array and k a torch array; convert one"):
        function(X, *[x] * (n - 1))
    with pytest.raises(RopeError, match="q is on cpu and [kv] on meta; move one of them"):
        function(*[x] * (n - 1), x.to("meta"))
    with pytest.raises(RopeError, match="positions .* need a rope.*pass rope=rope_xp.RoPE()"):
        function(X, *rest, at)
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got 'half'"):
        function(X, *rest, at, "half")
    with pytest.raises(RopeError, match=r"positions has shape \(4,\)"):
        function(X, *rest, at[:4], RoPE())


MASK, SHORT, linear = np.ones(5, bool), X[:, :3], partial(linear_attention, X, X, X)
Q, TABLE, BY_TOKENS = np.zeros((2, 5, 4, 6)), np.zeros((7, 6)), np.zeros((4, 4, 6))
W, V, V_TABLE = np.zeros((2, 4, 5, 6)), np.zeros((2, 6, 2, 3)), np.zeros((7, 3))
shaw, of_mask = partial(encodings.shaw, Q, Q), partial(attention, X, X, X)
VALUES = [
    (lambda: scores(X, X, k_positions=np.arange(5)), "k_positions need a rope"),
    (lambda: scores(X, SHORT, rope=RoPE()), "pass k_positions"),
    (lambda: scores(X, X, scale=float("nan")), "scale must be positive and finite"),
    (lambda: global_pointer(X, SHORT), r"with the tokens of q, here \(2, 5, any"),
    (lambda: global_pointer(X, X, mask=np.ones((3, 5), bool)), r"tokens\) = \(2, 5\)"),
    (lambda: of_mask(mask=np.ones((2, 5, 5), bool)), r"k tokens\) = \(2, 4, 5, 5\)"),
    (lambda: linear(feature_map="softmax", causal=True), "over all tokens.*causal; use 'elu'"),
    (lambda: linear(feature_map="relu"), "feature_map must be 'elu', 'softmax' or two .*'relu'"),
    (
        lambda: linear(feature_map=(lambda x: x.sum(-1), np.exp)),
        r"the result of phi has.*\(2, 5, 4, any\)",
    ),
    (
        lambda: encodings.shaw(Q[..., :0], Q[..., :0], TABLE),
        r"q has shape \(2, 5, 4, 0\); .*but 0\)",
    ),
    (lambda: encodings.shaw(Q, Q[:, :3], TABLE), "pass positions and k_positions"),
    (lambda: shaw(TABLE[:6]), r"6 entries.*2 \* clip \+ 1"),
    (lambda: shaw(TABLE, scale=0.0), "scale must be positive"),
    (lambda: shaw(TABLE, positions=[0, 1]), r"positions has shape \(2,\); it must .* = \(2, 5\)"),
    (lambda: shaw(TABLE, positions=3), r"a single number for 5 tokens"),
    (lambda: shaw_values(W[:, :3], V, V_TABLE), "weights has 3 heads and v 2; .* a multiple"),
    (lambda: shaw_values(W, V[0, 0], V_TABLE), r"v has shape \(2, 3\); it must be"),
    (lambda: shaw_values(W[..., :5], V[:, :5], V_TABLE[:, :2]), r"_values has shape \(7, 2\)"),
    (lambda: transformer_xl(Q, Q, TABLE[:3], TABLE[:4], BY_TOKENS), r"u has .*\(3, 6\).*\(4, 6\)"),
    (
        lambda: transformer_xl(Q, Q, TABLE[:4], TABLE[:4], np.zeros((4, 6, 3))),
        "w_relative must be even",
    ),
    (lambda: encodings.t5_bias(Q, Q, np.zeros((3, 4))), "num_buckets must be >= 4"),
    (lambda: t5_buckets([1], 32, 8), "must exceed the 8"),
    (lambda: t5_buckets([1], 32, 2**31), "below 2"),
    (lambda: deberta(Q, Q, *[np.zeros((5, 4, 6))] * 2), r"clip entries, an even number"),
    (lambda: deberta(Q, Q, BY_TOKENS, BY_TOKENS[:2]), r"relative_k .* here \(4, 4, 6\)"),
    (lambda: sinusoidal([0], 5), "dim must be even"),
    (lambda: sinusoidal([2**31], 4), "positions"),
]
TYPES = [
    (lambda: scores(X, X, scale="0.5"), "scale must be a number"),
    (lambda: of_mask(mask=MASK * 1.0), "mask is a numpy.*must be boolean.*mask == 0"),
    (lambda: of_mask(mask=torch.tensor(MASK)), "q is a numpy array and mask a torch"),
    (lambda: linear(feature_map=(np.exp, "elu")), "'softmax' or two functions"),
    (lambda: linear(feature_map=(np.exp, lambda x: 1.0)), "result of varphi is a float; expected"),
    (lambda: linear(feature_map=(torch.tensor, np.exp)), "numpy array and the result of phi a to"),
    (lambda: encodings.shaw([1.0], Q, TABLE), "q is a list"),
    (lambda: encodings.shaw(torch.tensor(Q), Q, TABLE), "q is a torch array and k a numpy array"),
    (lambda: shaw(TABLE, positions=torch.arange(5)), "q is a numpy array and positions a torch"),
    (lambda: shaw(TABLE.astype(int)), "convert it to one of .*float32"),
    (lambda: shaw(TABLE, scale="1"), "scale must be a number"),
    (lambda: shaw(TABLE, positions=np.arange(5) + 0.5), "positions must hold integers"),
    (lambda: shaw_values(W > 0, V, V_TABLE), "weights is .* bool; convert it to one of"),
    (lambda: t5_buckets([0.5]), "relative must hold integers"),
    (lambda: sinusoidal([0], 4.0), "dim must be an integer"),
]


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [*((RopeError, *row) for row in VALUES), *((TypeError, *row) for row in TYPES)],
)
def test_functions_refuse_arguments_that_do_not_fit(error, call, message):
    with pytest.raises(error, match=message):
        call()
