"""out=: results land where they were asked to, or nothing is written at all."""

from __future__ import annotations

import numpy as np
import pytest
from rope_xp_backends.cpu import launch
from support.targets import Target, rows, truth

import rope_xp
from rope_xp import RoPE, RopeError

WRITING = (
    *("numpy-portable", "numpy-chunked", "numpy-llvm", "numpy-cuda", "array-api-strict"),
    *("torch", "torch-llvm", "torch:gpu", "cupy", "cupy-portable"),
)
writing = pytest.mark.parametrize("backend", rows(WRITING))


def pair(backend: Target, dtype: str = "float32"):
    rng = np.random.default_rng(0)
    shapes = ((2, 9, 4, 8), (2, 9, 2, 8))
    return [backend.make(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


@writing
def test_new_memory(backend: Target) -> None:
    q, k = pair(backend)
    expected = truth(rope_xp.apply, q, k)
    out = tuple(pair(backend))
    got = rope_xp.apply(q, k, out=out)
    for g, o, e in zip(got, out, expected, strict=True):
        assert g is o
        np.testing.assert_array_equal(backend.back(g), backend.back(e))


@writing
def test_in_place(backend: Target) -> None:
    for layout in ("interleaved", "half", "interleaved_to_half"):
        q, k = pair(backend)
        expected = truth(rope_xp.apply, q, k, layout=layout)
        got = rope_xp.apply(q, k, layout=layout, out=(q, k))
        assert got[0] is q
        assert got[1] is k
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(backend.back(g), backend.back(e))


@pytest.mark.parametrize("backend", rows(("numpy-llvm", "torch-llvm")))
@pytest.mark.parametrize("offset", [0, 2])  # aligned to a vector, and not
def test_past_the_caches(backend: Target, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "BYTES_TO_STREAM", 1)
    for layout in ("interleaved", "half", "interleaved_to_half"):
        rope = RoPE(layout=layout, rotary_dim=32, rotary_offset=offset)
        made = [np.random.default_rng(n).standard_normal((2, 9, n, 48), "f4") for n in (4, 2)]
        q, k = map(backend.make, made)
        expected = truth(rope.apply, q, k)
        for out in (tuple(map(backend.make, made)), (q, k)):
            for g, e in zip(rope.apply(q, k, out=out), expected, strict=True):
                np.testing.assert_array_equal(backend.back(g), backend.back(e))


@writing
def test_one_array_in_place(backend: Target) -> None:
    x, _ = pair(backend)
    before = backend.back(x).copy()
    rope = RoPE(layout="half")
    assert rope.rotate(x, out=x) is x
    assert (backend.back(x) != before).any()
    rope.unrotate(x, out=x)
    np.testing.assert_allclose(backend.back(x), before, rtol=0, atol=1e-6)
    cos, sin = rope.cos_sin(np.arange(9), 8)
    rope_xp.apply_tables(x, cos, sin, layout="half", out=x)
    rope.rerotate(x, None, np.zeros(9, int), out=x)
    np.testing.assert_allclose(backend.back(x), before, rtol=0, atol=2e-6)


def test_slice_of_fused_projections() -> None:
    torch = pytest.importorskip("torch")
    qkv = np.random.default_rng(0).standard_normal((2, 9, 3, 4, 8)).astype(np.float32)
    before = qkv.copy()
    expected = rope_xp.apply(before[:, :, 0], before[:, :, 1])
    for array in (qkv, torch.tensor(qkv)):
        q, k = array[:, :, 0], array[:, :, 1]
        rope_xp.apply(q, k, out=(q, k))
        got = np.asarray(array)
        for i in range(2):
            np.testing.assert_array_equal(got[:, :, i], expected[i])
        np.testing.assert_array_equal(got[:, :, 2], before[:, :, 2])


def refused(match: str, function, *arrays: np.ndarray, error: type = RopeError, **kwargs) -> None:
    """Check that a call raises, and that no array was written."""
    before = [np.asarray(a).copy() for a in arrays]
    with pytest.raises(error, match=match):
        function(**kwargs)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_refusals(library: str) -> None:
    storage = np.random.default_rng(0).standard_normal(2600).astype(np.float32)
    if library == "torch":
        storage = pytest.importorskip("torch").tensor(storage)
    q, k = storage[:576].reshape(2, 9, 4, 8), storage[600:888].reshape(2, 9, 2, 8)
    other_q, other_k = storage[900:1476].reshape(q.shape), storage[1500:1788].reshape(k.shape)

    def attempt(match: str, out: object, error: type = RopeError) -> None:
        refused(match, lambda: rope_xp.apply(q, k, out=out), storage, error=error)

    attempt("out must be a tuple", other_q, TypeError)
    attempt("out must be a tuple", (other_q,), TypeError)
    attempt(r"out\[1\] is .* of shape \(2, 9, 4, 8\)", (other_q, q))
    wrong = other_q.astype("f8") if library == "numpy" else other_q.double()
    attempt(r"out\[0\] is .* and dtype float64", (wrong, other_k))
    attempt(r"out\[0\] must be an array of", ([1.0], other_k), TypeError)
    shifted = storage[8:584].reshape(q.shape)
    attempt(r"out\[0\] overlaps q without being q itself", (shifted, other_k))
    attempt(r"out\[0\] overlaps k", (storage[600:1176].reshape(q.shape), other_k))
    attempt(r"out\[0\] and out\[1\] overlap", (other_q, storage[900:1188].reshape(k.shape)))
    same = storage[600:1176].reshape(q.shape)
    refused(
        r"out\[0\] overlaps k without being q itself",
        lambda: rope_xp.apply(q, same, out=(same, q)),
        storage,
    )
    square = storage[:64].reshape(8, 8)
    refused(
        "out overlaps x without being x itself",
        lambda: rope_xp.RoPE().rotate(square, out=square.T),
        storage,
    )
    x = storage[:576].reshape(2, 9, 4, 8)
    cos, sin = storage[1900:1936].reshape(9, 4), storage[1936:1972].reshape(9, 4)
    for table, first in (("cos", 1420), ("cos", 1350), ("sin", 1940)):
        out = storage[first : first + 576].reshape(x.shape)
        refused(
            f"out overlaps {table}",
            lambda out=out: rope_xp.apply_tables(x, cos, sin, out=out),
            storage,
        )


def test_read_only_and_broadcast_numpy() -> None:
    q, k = pair_numpy()
    out_q, out_k = np.zeros_like(q), np.zeros_like(k)
    out_k.setflags(write=False)
    refused(r"out\[1\] is read-only", lambda: rope_xp.apply(q, k, out=(out_q, out_k)), out_q)
    strided = np.lib.stride_tricks.as_strided(np.zeros(8, "f4"), k.shape, (0, 0, 0, 4))
    refused("elements share memory", lambda: rope_xp.apply(q, k, out=(out_q, strided)), out_q)


def pair_numpy() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((2, 9, 4, 8)).astype("f4"),
        rng.standard_normal((2, 9, 2, 8)).astype("f4"),
    )


def test_views_that_share_elements_and_views_that_do_not() -> None:
    x = np.random.default_rng(0).standard_normal((5, 2, 8)).astype("f4")
    expected = RoPE().rotate(x)
    memory = np.zeros(400, "f4")
    view = np.lib.stride_tricks.as_strided
    for strides in ((16, 8, 4), (32, 32, 4), (0, 32, 4)):
        shared = view(memory, x.shape, strides)
        refused("elements share memory", lambda out=shared: RoPE().rotate(x, out=out), memory)
    for strides in ((64, 32, 4), (32, 160, 4), (4, 20, 40), (160, 80, 8)):
        apart = view(memory, x.shape, strides)
        np.testing.assert_array_equal(RoPE().rotate(x, out=apart), expected)
    backwards = np.zeros_like(x)[::-1]
    np.testing.assert_array_equal(RoPE().rotate(x, out=backwards), expected)
    for path in ("portable", "chunked", None):
        with rope_xp.use_path(path):
            swapped = np.zeros_like(x).astype(">f4")
            np.testing.assert_array_equal(RoPE().rotate(x, out=swapped), expected)
    empty = np.zeros((0, 2, 8), "f4")
    assert RoPE().rotate(empty, out=empty) is empty


def test_backwards_into_a_part_of_what_is_read() -> None:
    """The first element of such an array lies behind all the others."""
    storage = np.random.default_rng(0).standard_normal(120).astype("f4")
    x = storage[:64].reshape(8, 8)
    for first in (8, 56):
        out = storage[first : first + 64].reshape(8, 8)[::-1]
        refused("out overlaps x", lambda out=out: RoPE().rotate(x, out=out), storage)
        refused("out overlaps x", lambda out=out: RoPE().rotate(out, out=x), storage)
    apart = storage[64:96].reshape(4, 8)[::-1]
    expected = RoPE().rotate(x[:4])
    np.testing.assert_array_equal(RoPE().rotate(x[:4], out=apart), expected)


def test_torch_where_autograd_needs_the_values() -> None:
    torch = pytest.importorskip("torch")
    q, k = (torch.tensor(x) for x in pair_numpy())
    out = (torch.zeros_like(q), torch.zeros_like(k))
    q.requires_grad_()
    for target in (out, (q, k)):
        refused(
            "autograd cannot follow",
            lambda target=target: rope_xp.apply(q, k, out=target),
            out[0],
            q.detach(),
        )
    with torch.no_grad():
        rope_xp.apply(q, k, out=out)
        rope_xp.apply(q, k, out=(q, k))
    assert torch.equal(q.detach(), out[0])
    expanded = torch.zeros(1, 1, 1, 8).expand(q.shape)
    with torch.no_grad():
        refused(
            "elements share memory", lambda: rope_xp.apply(q, k, out=(expanded, out[1])), out[1]
        )


def test_torch_inference_tensors() -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        frozen = torch.zeros(2, 9, 2, 8)
        q, k = (torch.tensor(x) for x in pair_numpy())
        rope_xp.apply(q, k, out=(q, k))
    q, k = (torch.tensor(x) for x in pair_numpy())
    out = torch.zeros_like(q)
    refused(r"out\[1\]: .*inference_mode", lambda: rope_xp.apply(q, k, out=(out, frozen)), out)


def test_jax_says_why_not() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.ones((1, 2, 3, 4))
    with pytest.raises(TypeError, match="jax arrays cannot be written to.*donate"):
        rope_xp.apply(x, x, out=(x, x))
    with pytest.raises(TypeError, match="donate"):
        RoPE().rotate(x, out=np.zeros((1, 2, 3, 4), np.float32))
