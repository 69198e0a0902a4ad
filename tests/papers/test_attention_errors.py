"""What attention refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.attention_oracles import FUNCTIONS

from rope_xp import RoPE, RopeError
from rope_xp.papers import attention

X = np.ones((2, 5, 4, 8), np.float32)
every_function = pytest.mark.parametrize(("function", "n"), FUNCTIONS)


@pytest.mark.parametrize(
    ("i", "x", "error", "message"),
    [
        (0, X.tolist(), TypeError, "q is a list, which is no array"),
        (1, X.tolist(), TypeError, "k is a list, which is no array"),
        (0, X.astype(int), TypeError, "q is a numpy array .* int64; it must hold .*Convert it"),
        (1, X > 0, TypeError, "k is a numpy array .* bool; it must hold"),
        (0, X[0, 0], RopeError, r"q has shape \(4, 8\); it needs \(batch..., tokens, heads, head"),
        (1, X[0], RopeError, "must have equal batch axes of .*; broadcast one"),
        (1, X[:1], RopeError, r"k of shape \(1, 5, 4, 8\) must have equal batch axes"),
        (1, X[..., :6], RopeError, "must have equal head_dim, the last axis"),
        (1, X[:, :, :3], RopeError, "q has 4 heads and k 3; those of q must be a multiple"),
        (1, X[:, :, :0], RopeError, "q has 4 heads and k 0; those of q must be a multiple"),
        (2, None, TypeError, "v is a NoneType, which is no array"),
        *(
            (2, v, RopeError, "k of shape .* and v of shape .* must have equal batch")
            for v in (X[:1], X[:, :3], X[:, :, :2], X[0])
        ),
    ],
)
def test_arrays_that_do_not_fit(i: int, x: Any, error: type[Exception], message: str) -> None:
    arrays: list[Any] = [X, X, X]
    arrays[i] = x
    for function, n in FUNCTIONS:
        if i < n:
            with pytest.raises(error, match=message):
                function(*arrays[:n], rope=RoPE())


def test_head_dim_must_not_be_empty() -> None:
    with pytest.raises(RopeError, match="head_dim, must not be empty"):
        attention.scores(X[..., :0], X[..., :0])


@every_function
def test_libraries_are_not_mixed(function: Any, n: int) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a numpy array and k a torch array; convert one"):
        function(X, *[torch.ones(2, 5, 4, 8)] * (n - 1))


def test_devices_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    cpu, meta = torch.ones(2, 5, 4, 8), torch.ones(2, 5, 4, 8, device="meta")
    with pytest.raises(RopeError, match="q is on cpu and v on meta; move one of them"):
        attention.attention(cpu, cpu, meta)


@every_function
def test_positions_need_a_rope(function: Any, n: int) -> None:
    with pytest.raises(RopeError, match="positions came without a rope.*pass rope=rope_xp.RoPE()"):
        function(*[X] * n, np.arange(5))
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got 'half'"):
        function(*[X] * n, np.arange(5), "half")
    with pytest.raises(RopeError, match=r"positions has shape \(4,\)"):
        function(*[X] * n, np.arange(4), RoPE())


def test_k_positions_where_tokens_differ() -> None:
    with pytest.raises(RopeError, match="k_positions came without a rope"):
        attention.scores(X, X, k_positions=np.arange(5))
    with pytest.raises(RopeError, match="Give k_positions for the tokens of k"):
        attention.scores(X, X[:, :3], rope=RoPE())
    for function, arrays in (
        (attention.linear_attention, (X, X[:, :3], X[:, :3])),
        (attention.global_pointer, (X, X[:, :3])),
    ):
        with pytest.raises(RopeError, match="q has 5 tokens and k 3; .* needs q and k of the same"):
            function(*arrays)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_positive(scale: float) -> None:
    with pytest.raises(RopeError, match="scale must be positive and finite"):
        attention.scores(X, X, scale=scale)
    with pytest.raises(TypeError, match="scale must be a number"):
        attention.scores(X, X, scale="0.5")  # type: ignore[arg-type]  # the mistake


def test_masks_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="mask is a numpy array .*must be boolean.*mask == 0"):
        attention.attention(X, X, X, mask=np.zeros((5, 5), np.float32))
    with pytest.raises(TypeError, match="mask is a list, which is no array"):
        attention.attention(X, X, X, mask=[[True]])  # type: ignore[type-var]  # the mistake
    for shape in ((5, 4), (2, 5, 5), (2, 3, 5, 5), (1, 2, 4, 5, 5)):
        with pytest.raises(RopeError, match=r"heads, tokens, k tokens\) = \(2, 4, 5, 5\)"):
            attention.attention(X, X, X, mask=np.ones(shape, bool))
    for shape in ((4,), (3, 5), (1, 2, 5)):
        with pytest.raises(RopeError, match=r"must broadcast to \(batch..., tokens\) = \(2, 5\)"):
            attention.global_pointer(X, X, mask=np.ones(shape, bool))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a numpy array and mask a torch array"):
        attention.attention(X, X, X, mask=torch.ones(5, 5, dtype=torch.bool))


def test_feature_maps_that_do_not_fit() -> None:
    def call(feature_map: Any, **options: Any) -> None:
        attention.linear_attention(X, X, X, feature_map=feature_map, **options)

    with pytest.raises(RopeError, match="feature_map must be 'elu', 'softmax' or two .*'relu'"):
        call("relu")
    for wrong in (None, np.exp, (np.exp,), (np.exp, "elu")):
        with pytest.raises(TypeError, match="'softmax' or two functions"):
            call(wrong)
    with pytest.raises(
        RopeError, match="softmax of k over all tokens.*cannot be causal; use 'elu'"
    ):
        call("softmax", causal=True)
    with pytest.raises(RopeError, match=r"phi made \(2, 5, 4\) of shape .*the last axis alone"):
        call((lambda x: x.sum(-1), np.exp))
    with pytest.raises(RopeError, match="phi made 8 features and varphi 4"):
        call((np.exp, lambda x: x[..., :4]))
    with pytest.raises(TypeError, match="what varphi returned is a float, which is no array"):
        call((np.exp, lambda x: 1.0))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a numpy array and what phi returned a torch array"):
        call((lambda x: torch.tensor(x), np.exp))
