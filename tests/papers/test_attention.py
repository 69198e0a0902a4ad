"""Softmax attention against torch's own; dtypes, shapes and rotation of all functions."""

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.attention_oracles import CLOSE, FUNCTIONS, build_qkv
from support.targets import numpy_dtype, rows

from rope_xp import RoPE
from rope_xp.papers import attention
from rope_xp.scaling import YaRN

MASK = np.random.default_rng(4).random((2, 1, 12, 12)) < 0.6
MASK[..., 0] = True  # torch has no row without anything to attend to
AT = np.arange(12) * 5
CACHED = AT[-3:, None] >= AT
FEW = np.ones((2, 1, 12, 12), bool)
FEW[0, 0, 3] = False  # a token that may attend to nothing
OPTIONS = {
    "causal": ({"causal": True}, {"is_causal": True}),
    "fewer keys": ({"causal": True}, {"is_causal": True}),
    "mask": ({"mask": MASK}, {"attn_mask": MASK}),
    "both": ({"mask": MASK, "causal": True}, {"attn_mask": MASK & np.tri(12, dtype=bool)}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "rope": ({"rope": RoPE(layout="half"), "positions": AT}, {}),
    "cache": (
        {"rope": RoPE(), "positions": AT[-3:], "k_positions": AT, "mask": CACHED},
        {"attn_mask": CACHED},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_that_of_torch(name):
    torch = pytest.importorskip("torch")
    options, of_torch = OPTIONS[name]
    q, k, v = build_qkv(s=3 if name == "cache" else 12, t=9 if name == "fewer keys" else 12)
    rotated = q, k
    if "rope" in options:
        rotated = (options["rope"].rotate(x, AT[-x.shape[1] :]) for x in (q, k))
    tensors = [torch.tensor(x).transpose(1, 2) for x in (*rotated, v)]
    of_torch = {key: torch.tensor(x) if key == "attn_mask" else x for key, x in of_torch.items()}
    expected = torch.nn.functional.scaled_dot_product_attention(
        *tensors, enable_gqa=True, **of_torch
    )
    result = attention.attention(q, k, v, **options)
    np.testing.assert_allclose(result, expected.transpose(1, 2).numpy(), **CLOSE)


def test_attention_of_tokens_that_attend_to_nothing_is_zero():
    q, k, v = build_qkv()
    result, unmasked = attention.attention(q, k, v, mask=FEW), attention.attention(q, k, v)
    assert not result[0, 3].any()
    result[0, 3] = unmasked[0, 3]
    np.testing.assert_allclose(result, unmasked, **CLOSE)
    assert not attention.attention(q, k[:, :0], v[:, :0]).any()


def test_attention_of_large_scores_does_not_overflow():
    """Not before they are scaled either: 64 products of 1.6e37 are more than float32 holds."""
    x = np.full((1, 1, 64), 4e18, np.float32)
    np.testing.assert_allclose(attention.scores(x, x), 8 * np.float64(x[0, 0, 0]) ** 2, rtol=1e-5)
    q, k, v = build_qkv()
    result = attention.attention(q * 1e4, k * 1e4, v)
    nearest = oracles.scores(q.astype(np.float64), k.astype(np.float64)).argmax(-1)
    for b, h in np.ndindex(2, 4):  # one weight is all but 1
        np.testing.assert_allclose(result[b, :, h], v[b, nearest[b, h], h // 2], **CLOSE)


CALLS = {
    "scores": (attention.scores, 2, {}),
    "attention": (attention.attention, 3, {"mask": FEW, "causal": True}),
    "linear": (attention.linear_attention, 3, {}),
    "linear, causal": (attention.linear_attention, 3, {"causal": True}),
    "linear, softmax": (attention.linear_attention, 3, {"feature_map": "softmax"}),
    "spans": (attention.global_pointer, 2, {"mask": FEW[:, 0, 3]}),
}
"""Each with the number of its arrays. Masks need 12 tokens."""


@pytest.mark.parametrize("name", CALLS)
def test_functions_run_on_the_oldest_standard_with_every_flag_off(name):
    xp, (function, n, options) = pytest.importorskip("array_api_strict"), CALLS[name]
    flags = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}
    with xp.ArrayAPIStrictFlags(api_version="2022.12", **flags):
        masks = {key: xp.asarray(x) if key == "mask" else x for key, x in options.items()}
        result = function(*map(xp.asarray, build_qkv()[:n]), rope=RoPE(), **masks)
        assert result.dtype == xp.float32


@pytest.mark.parametrize("name", ["attention", "linear, causal", "linear, softmax", "spans"])
@pytest.mark.parametrize("backend", rows(("torch", "torch-compile", "jax-jit", "dask")))
def test_functions_on_every_library_have_the_numbers_of_numpy(backend, name):
    function, n, options = CALLS[name]
    tokens = 12 if "mask" in options else 150  # of linear attention, more than a chunk
    arrays = build_qkv(s=tokens, t=tokens)[:n]
    masks = {key: backend.make(x) if key == "mask" else x for key, x in options.items()}
    result = backend.run(lambda *a: function(*a, rope=RoPE(), **masks), *map(backend.make, arrays))
    assert type(result) is type(backend.make(arrays[0]))
    expected = function(*arrays, rope=RoPE(), **options)
    np.testing.assert_allclose(backend.back(result), expected, **CLOSE)


# Computed in float32, as CLOSE is, and then rounded once: half a step of the dtype.
ROUNDED = {"float64": 1e-13, "float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_functions_of_few_bits_compute_in_float32(backend, function, n):
    for dtype in backend.floats:
        arrays = [x.astype(numpy_dtype(dtype)) for x in build_qkv()[:n]]
        result = function(*map(backend.make, arrays), rope=RoPE())
        assert result.dtype == backend.make(arrays[0]).dtype
        exact = function(*(x.astype(np.float64) for x in arrays), rope=RoPE())
        exact = np.where(exact == -1e12, -65504.0 if dtype == "float16" else -1e12, exact)
        rtol, atol = 1.05 * ROUNDED[dtype], min(1e-5, ROUNDED[dtype])
        numbers = backend.back(result).astype(np.float64)
        np.testing.assert_allclose(numbers, exact, rtol=rtol, atol=atol)


def test_scores_are_products_of_rotated_heads_scaled():
    q, k, _ = build_qkv()
    positions = np.arange(12) * 91
    rotated = (oracles.rotate_heads(x, positions, "half") for x in (q, k))
    expected, call = oracles.scores(*rotated), (q, k, positions, RoPE(layout="half"))
    np.testing.assert_allclose(attention.scores(*call), expected / 4, **CLOSE)
    np.testing.assert_allclose(attention.scores(*call, scale=1.0), expected, rtol=1e-5, atol=4e-5)
    rope = RoPE(scaling=YaRN(4.0, 64, mscale=1.0, mscale_all_dim=1.0))
    ours, plain = (attention.scores(q, k, rope=rope, scale=scale) for scale in (None, 0.25))
    np.testing.assert_allclose(ours, plain * np.float32(rope.softmax_scale), **CLOSE)


@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_functions_take_any_number_of_batch_axes(function, n):
    arrays = build_qkv()[:n]
    whole = function(*arrays, rope=RoPE())
    np.testing.assert_allclose(function(*(x[0] for x in arrays), rope=RoPE()), whole[0], **CLOSE)
    more = function(*(x[:, None] for x in arrays), rope=RoPE())
    np.testing.assert_allclose(more[:, 0], whole, **CLOSE)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_global_pointer_scores_spans_that_the_mask_allows(upper, scale):
    q, k, _ = build_qkv(fewer=4)
    real = np.arange(12) < np.array([[12], [7]])
    options = {"mask": real, "upper_triangular": upper, "scale": scale}
    result = attention.global_pointer(q, k, rope=RoPE(), **options)
    rotated = (oracles.rotate_heads(x, np.arange(12)) for x in (q, k))
    expected = oracles.scores(*rotated) / (4 if scale else 1)
    in_order = np.tri(12, dtype=bool).T | (not upper)
    is_span = real[:, None, :, None] & real[:, None, None, :] & in_order
    np.testing.assert_allclose(result, np.where(is_span, expected, -1e12), rtol=1e-5, atol=4e-5)
    nothing = attention.global_pointer(q, k, mask=np.array(False))  # of all tokens
    assert (nothing == np.float32(-1e12)).all()
