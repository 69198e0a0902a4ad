"""Softmax attention against torch's and jax's own; dtypes and shapes of all functions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import attention_oracles as oracles
from support.attention_oracles import CLOSE, FUNCTIONS, normal, some
from support.targets import Target, numpy_dtype, rows

from rope_xp import RoPE
from rope_xp.papers import attention
from rope_xp.scaling import YaRN

libraries = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))

# --- softmax attention ---------------------------------------------------------------------------


@libraries
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "both", "cross", "rope", "scale"])
def test_against_torch(backend: Target, kind: str) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = some(t=9 if kind == "cross" else 12)
    mask = np.random.default_rng(4).random((2, 1, 12, 12)) < 0.6
    mask[..., 0] = True  # torch has no row without anything to attend to
    options: dict[str, Any] = {}
    theirs: dict[str, Any] = {"enable_gqa": True}
    if kind in ("causal", "cross"):
        options["causal"] = theirs["is_causal"] = True
    if kind in ("mask", "both"):
        options["mask"] = backend.make(mask)
        options["causal"] = kind == "both"
        theirs["attn_mask"] = torch.tensor(mask & np.tril(mask | True) if kind == "both" else mask)
    if kind == "scale":
        options["scale"] = theirs["scale"] = 0.3
    turned = (q, k)
    if kind == "rope":
        options["positions"], options["rope"] = np.arange(12) * 5, RoPE(layout="half")
        turned = options["rope"].apply(q, k, options["positions"])
    got = attention.attention(*map(backend.make, (q, k, v)), **options)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.tensor(x).transpose(1, 2) for x in (*turned, v)), **theirs
    )
    np.testing.assert_allclose(backend.back(got), expected.transpose(1, 2).numpy(), **CLOSE)


@libraries
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "both", "cross", "rope"])
def test_against_jax(backend: Target, kind: str) -> None:
    jax = pytest.importorskip("jax")
    q, k, v = some(t=9 if kind == "cross" else 12)
    v = normal(*k.shape, seed=5)  # jax has one head_dim
    mask = np.random.default_rng(4).random((2, 4, 12, 12)) < 0.6
    mask[..., 0] = True
    options: dict[str, Any] = {"causal": kind in ("causal", "both", "cross")}
    theirs: dict[str, Any] = {"is_causal": options["causal"]}
    if kind in ("mask", "both"):
        options["mask"], theirs["mask"] = backend.make(mask), mask
    turned = (q, k)
    if kind == "rope":
        options["positions"], options["rope"] = np.arange(12) * 5, RoPE()
        turned = options["rope"].apply(q, k, options["positions"])
    got = attention.attention(*map(backend.make, (q, k, v)), **options)
    expected = jax.nn.dot_product_attention(*map(jax.numpy.asarray, (*turned, v)), **theirs)
    np.testing.assert_allclose(backend.back(got), np.asarray(expected), **CLOSE)


@libraries
def test_what_may_attend_to_nothing_is_zero(backend: Target) -> None:
    q, k, v = some()
    mask = np.ones((2, 1, 12, 12), bool)
    mask[0, 0, 3] = False
    arrays = [backend.make(x) for x in (q, k, v)]
    got = backend.back(attention.attention(*arrays, mask=backend.make(mask)))
    assert not got[0, 3].any()
    rest = backend.back(attention.attention(*arrays))
    np.testing.assert_allclose(got[1], rest[1], **CLOSE)
    np.testing.assert_allclose(got[0, 4:], rest[0, 4:], **CLOSE)
    empty = attention.attention(arrays[0], arrays[1][:, :0, ...], arrays[2][:, :0, ...])
    assert not backend.back(empty).any()


@libraries
def test_decoding_one_token_is_the_last_row(backend: Target) -> None:
    """With a cache: positions of its own for q, and a mask instead of causal."""
    q, k, v = some()
    rope = RoPE(layout="half")
    whole = attention.attention(*map(backend.make, (q, k, v)), rope=rope, causal=True)
    last = attention.attention(
        *map(backend.make, (q[:, -3:].copy(), k, v)),
        [9, 10, 11],
        rope,
        k_positions=np.arange(12),
        mask=backend.make(np.arange(12) <= np.arange(9, 12)[:, None]),
    )
    np.testing.assert_allclose(backend.back(last), backend.back(whole)[:, -3:], **CLOSE)


@libraries
def test_scores_that_fit_once_they_are_scaled(backend: Target) -> None:
    """64 products of 1.6e37 are more than float32 holds, an eighth of them is not."""
    x = backend.make(np.full((1, 1, 64), 4e18, np.float32))
    got = backend.back(attention.scores(x, x))
    np.testing.assert_allclose(got, 8 * np.float64(np.float32(4e18)) ** 2, rtol=1e-5)


@libraries
def test_large_scores_do_not_overflow(backend: Target) -> None:
    q, k, v = some()
    got = backend.back(attention.attention(*map(backend.make, (q * 1e4, k * 1e4, v))))
    assert np.isfinite(got).all()
    nearest = oracles.scores(q.astype(np.float64), k.astype(np.float64)).argmax(-1)
    for b, h in np.ndindex(2, 4):  # one weight is all but 1
        np.testing.assert_allclose(got[b, :, h], v[b, nearest[b, h], h // 2], **CLOSE)


# Computed in float32, as CLOSE is, and then rounded once: half a step of the dtype.
ROUNDED = {"float64": 1e-13, "float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}


@libraries
@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_few_bits_are_computed_in_float32(backend: Target, function: Any, n: int) -> None:
    for dtype in backend.floats:
        arrays = [x.astype(numpy_dtype(dtype)) for x in some()[:n]]
        got = function(*map(backend.make, arrays), rope=RoPE())
        assert got.dtype == backend.make(arrays[0]).dtype
        exact = function(*(x.astype(np.float64) for x in arrays), rope=RoPE())
        exact = np.where(exact == -1e12, -65504.0 if dtype == "float16" else -1e12, exact)
        rtol, atol = 1.05 * ROUNDED[dtype], min(1e-5, ROUNDED[dtype])
        found = backend.back(got).astype(np.float64)
        np.testing.assert_allclose(found, exact, rtol=rtol, atol=atol)


def test_one_float64_makes_the_computation_float64() -> None:
    q, k, v = some()
    got = attention.attention(q, k, v.astype(np.float64), rope=RoPE())
    exact = attention.attention(*(x.astype(np.float64) for x in (q, k, v)), rope=RoPE())
    np.testing.assert_array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize("version", ["2022.12", "2023.12", "2024.12", "2025.12"])
def test_every_version_of_the_standard_with_every_flag_off(version: str) -> None:
    xp = pytest.importorskip("array_api_strict")
    q, k, v = some()
    mask = np.random.default_rng(0).random((12, 12)) < 0.7
    with xp.ArrayAPIStrictFlags(
        api_version=version,
        boolean_indexing=False,
        data_dependent_shapes=False,
        enabled_extensions=(),
    ):
        arrays, allowed = [xp.asarray(x) for x in (q, k, v)], xp.asarray(mask)
        found = [
            attention.attention(*arrays, rope=RoPE(), mask=allowed, causal=True),
            attention.linear_attention(*arrays, rope=RoPE(), causal=True),
            attention.linear_attention(*arrays, rope=RoPE(), feature_map="softmax"),
            attention.global_pointer(*arrays[:2], rope=RoPE(), mask=allowed[:2, ...]),
        ]
    expected = [
        attention.attention(q, k, v, rope=RoPE(), mask=mask, causal=True),
        attention.linear_attention(q, k, v, rope=RoPE(), causal=True),
        attention.linear_attention(q, k, v, rope=RoPE(), feature_map="softmax"),
        attention.global_pointer(q, k, rope=RoPE(), mask=mask[:2]),
    ]
    for got, numbers in zip(found, expected, strict=True):
        assert got.dtype == xp.float32
        np.testing.assert_allclose(np.asarray(got), numbers, **CLOSE)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("function", "n", "causal"),
    [(f, n, c) for f, n in FUNCTIONS for c in (False, True)[: n - 1]],  # those of three have both
)
@pytest.mark.parametrize("backend", rows(("torch-compile", "jax-jit", "dask")))
def test_compilers_and_dask(backend: Target, function: Any, n: int, causal: bool) -> None:
    options = {"causal": causal} if causal else {}

    def call(*arrays: Any) -> Any:
        return function(*arrays, rope=RoPE(), **options)

    arrays = some(s=150, t=150)[:n]  # of linear attention, more than a chunk
    found = backend.run(call, *map(backend.make, arrays))
    assert type(found) is type(backend.make(arrays[0]))
    np.testing.assert_allclose(backend.back(found), call(*arrays), **CLOSE)


@libraries
def test_batch_axes_are_any_number(backend: Target) -> None:
    q, k, v = some()
    mask = np.random.default_rng(0).random((12, 12)) < 0.7
    for function in (attention.attention, attention.linear_attention):
        options = {"mask": backend.make(mask)} if function is attention.attention else {}
        whole = backend.back(function(*map(backend.make, (q, k, v)), rope=RoPE(), **options))
        one = function(*(backend.make(x[0]) for x in (q, k, v)), rope=RoPE(), **options)
        np.testing.assert_allclose(backend.back(one), whole[0], **CLOSE)
        more = [backend.make(x[:, None]) for x in (q, k, v)]
        got = backend.back(function(*more, rope=RoPE(), **options))
        np.testing.assert_allclose(got[:, 0], whole, **CLOSE)


def test_the_softmax_scale_of_a_rope_is_in_the_default_scale() -> None:
    rope = RoPE(scaling=YaRN(4.0, 64, mscale=1.0, mscale_all_dim=1.0))
    q, k, _ = (x.astype(np.float64) for x in some())
    assert rope.softmax_scale != 1.0
    expected = oracles.scores(*rope.apply(q, k)) * rope.softmax_scale / 4
    np.testing.assert_allclose(attention.scores(q, k, rope=rope), expected, rtol=1e-12, atol=1e-12)


# --- shapes --------------------------------------------------------------------------------------


@given(
    st.integers(0, 2), st.integers(1, 5), st.integers(1, 5), st.integers(1, 2), st.integers(1, 3),
    st.integers(1, 4), st.integers(1, 5), st.booleans(),
)  # fmt: skip
def test_shapes(b: int, s: int, t: int, kv: int, g: int, half: int, dv: int, causal: bool) -> None:
    """One token, one head and no batch at all included."""
    q, k, v = normal(b, s, kv * g, 2 * half), normal(b, t, kv, 2 * half), normal(b, t, kv, dv)
    given: dict[str, Any] = {"rope": RoPE(), "k_positions": np.arange(t)}
    assert attention.scores(q, k, **given).shape == (b, kv * g, s, t)
    assert attention.attention(q, k, v, causal=causal, **given).shape == (b, s, kv * g, dv)
    same, values = normal(b, s, kv, 2 * half), normal(b, s, kv, dv)
    assert attention.linear_attention(q, same, values, causal=causal).shape == (b, s, kv * g, dv)
    assert attention.global_pointer(q, same).shape == (b, kv * g, s, s)


def test_importing_rope_xp_does_not_import_it() -> None:
    code = "import sys, rope_xp; print('rope_xp.papers.attention' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
