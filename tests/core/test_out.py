"""out=: results land in the given memory, or nothing is written at all."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.equality import LAYOUTS
from support.targets import rows, truth

import rope_xp
from rope_xp import RoPE, RopeError

WRITING = (
    *("numpy-portable", "numpy-chunked", "numpy-native", "numpy-cuda", "array-api-strict"),
    *("torch", "torch-native", "torch:gpu", "cupy", "cupy-portable"),
)
HALF = RoPE(layout="half")


def make_pair() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 9, heads, 8), np.float32) for heads in (4, 2)]


@pytest.mark.parametrize("backend", rows(WRITING))
def test_apply_writes_to_out_and_in_place(backend):
    for rope in (RoPE(layout=layout) for layout in LAYOUTS):
        q, k = map(backend.make, make_pair())
        expected = truth(rope.apply, q, k)
        for out in (tuple(map(backend.make, make_pair())), (q, k)):
            for result, array, right in zip(rope.apply(q, k, out=out), out, expected, strict=True):
                assert result is array
                np.testing.assert_array_equal(backend.back(result), backend.back(right))


@pytest.mark.parametrize("backend", rows(WRITING))
def test_functions_of_one_array_write_in_place(backend):
    x = backend.make(make_pair()[0])
    before = backend.back(x).copy()
    assert HALF.rotate(x, out=x) is x
    assert (backend.back(x) != before).any()
    HALF.unrotate(x, out=x)
    np.testing.assert_allclose(backend.back(x), before, rtol=0, atol=1e-6)
    rope_xp.apply_tables(x, *HALF.cos_sin(np.arange(9), 8), layout="half", out=x)
    HALF.rerotate(x, None, np.zeros(9, int), out=x)
    np.testing.assert_allclose(backend.back(x), before, rtol=0, atol=2e-6)


def check_refused(
    match: str, call: Callable[[], Any], *arrays: Any, error: type[Exception] = RopeError
) -> None:
    """Check that a call raises, and that no array was written."""
    before = [np.asarray(a).copy() for a in arrays]
    with pytest.raises(error, match=match):
        call()
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(np.asarray(array), copy)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_apply_refuses_out_that_does_not_fit_or_overlaps(library):
    storage = np.random.default_rng(0).standard_normal(2600).astype(np.float32)
    if library == "torch":
        storage = pytest.importorskip("torch").tensor(storage)

    def view(start: int, *shape: int) -> Any:
        return storage[start : start + int(np.prod(shape))].reshape(shape)

    q, k = view(0, 2, 9, 4, 8), view(600, 2, 9, 2, 8)
    other_q, other_k = view(900, 2, 9, 4, 8), view(1500, 2, 9, 2, 8)
    wide = other_q.astype("f8") if library == "numpy" else other_q.double()
    for error, match, out in [
        (TypeError, "out must be a tuple", other_q),
        (TypeError, "out must be a tuple .* got a tuple of 1", (other_q,)),
        (TypeError, r"out\[0\] must be an array of", ([1.0], other_k)),
        (RopeError, r"out\[1\] is .* of shape \(2, 9, 4, 8\)", (other_q, q)),
        (RopeError, r"out\[0\] is .* and dtype float64", (wide, other_k)),
        (RopeError, r"out\[0\] overlaps q but is not q", (view(8, 2, 9, 4, 8), other_k)),
        (RopeError, r"out\[0\] overlaps k", (view(600, 2, 9, 4, 8), other_k)),
        (RopeError, r"out\[0\] and out\[1\] overlap", (other_q, view(900, 2, 9, 2, 8))),
    ]:
        check_refused(match, lambda out=out: rope_xp.apply(q, k, out=out), storage, error=error)
    same, square = view(600, 2, 9, 4, 8), view(0, 8, 8)
    for match, call in (
        (r"out\[0\] overlaps k but is not q", lambda: rope_xp.apply(q, same, out=(same, q))),
        ("out overlaps x but is not x itself", lambda: RoPE().rotate(square, out=square.T)),
    ):
        check_refused(match, call, storage)
    cos, sin = view(1900, 9, 4), view(1936, 9, 4)
    for table, start in (("cos", 1420), ("cos", 1350), ("sin", 1940)):
        call = partial(rope_xp.apply_tables, q, cos, sin, out=view(start, 2, 9, 4, 8))
        check_refused(f"out overlaps {table}", call, storage)


def test_apply_refuses_positions_within_out():
    memory = np.zeros(200, np.int64)
    x, within = memory[:100].view(np.float32).reshape(10, 2, 10), memory[40:50]
    other, apart = np.ones_like(x), np.arange(10)
    own = {"k_positions": within, "out": (other, x)}
    for match, call in {
        "out overlaps positions; pass": lambda: HALF.rotate(x, within, out=x),
        r"out\[0\] overlaps positions": lambda: HALF.apply(x, other, within, out=(x, other)),
        r"out\[1\] overlaps k_positions": lambda: HALF.apply(other, x, apart, **own),
    }.items():
        check_refused(match, call, memory, other)
    HALF.rotate(x, within.astype(np.int32), out=x)  # converted, to other memory


@pytest.mark.parametrize(("library", "method"), [("numpy", "rerotate"), ("torch", "rotate")])
def test_positions_within_out_are_read_before_it_is_written(library, method):
    xp = pytest.importorskip(library)
    memory = xp.arange(100)
    x, within = memory.view(xp.float32).reshape(10, 2, 10), memory[40:50]
    copies = [xp.asarray(a, copy=True) for a in (x, within)]
    new = [xp.arange(10) + 7] if method == "rerotate" else []
    expected = getattr(HALF, method)(*copies, *new)
    result = getattr(HALF, method)(x, within, *new, out=x)
    np.testing.assert_array_equal(result, expected)


def test_rotate_writes_to_views_whose_elements_share_no_memory():
    x, memory = make_pair()[0][0, :5, :2], np.zeros(400, "f4")
    expected, view = RoPE().rotate(x), np.lib.stride_tricks.as_strided
    read_only, first = np.zeros_like(x), np.zeros_like(x)
    read_only.setflags(write=False)
    check_refused(
        r"out\[1\] is read-only", lambda: rope_xp.apply(x, x, out=(first, read_only)), first
    )
    for strides in ((16, 8, 4), (32, 32, 4), (0, 32, 4), (0, 0, 4)):
        shared, match = view(memory, x.shape, strides), "elements share memory"
        check_refused(match, lambda out=shared: RoPE().rotate(x, out=out), memory)
        pair = first, shared
        check_refused(match, lambda out=pair: rope_xp.apply(x, x, out=out), first, memory)
    views = [view(memory, x.shape, s) for s in ((64, 32, 4), (32, 160, 4), (4, 20, 40))]
    for out in (*views, view(memory, x.shape, (160, 80, 8)), np.zeros_like(x)[::-1]):
        np.testing.assert_array_equal(RoPE().rotate(x, out=out), expected)
    for path in ("portable", "chunked", None):
        with rope_xp.use_path(path):
            swapped = np.zeros_like(x).astype(">f4")
            np.testing.assert_array_equal(RoPE().rotate(x, out=swapped), expected)
    empty = np.zeros((0, 2, 8), "f4")
    assert RoPE().rotate(empty, out=empty) is empty


def test_rotate_refuses_out_that_lies_backwards_over_x():
    """The first element of such an array lies behind all the others."""
    storage = np.random.default_rng(0).standard_normal(120).astype("f4")
    x = storage[:64].reshape(8, 8)
    for first in (8, 56):
        out = storage[first : first + 64].reshape(8, 8)[::-1]
        check_refused("out overlaps x", lambda out=out: RoPE().rotate(x, out=out), storage)
        check_refused("out overlaps x", lambda out=out: RoPE().rotate(out, out=x), storage)
    apart, expected = storage[64:96].reshape(4, 8)[::-1], RoPE().rotate(x[:4])
    np.testing.assert_array_equal(RoPE().rotate(x[:4], out=apart), expected)


def test_apply_refuses_out_that_autograd_cannot_follow():
    torch = pytest.importorskip("torch")
    q, k = map(torch.tensor, make_pair())
    out = (torch.zeros_like(q), torch.zeros_like(k))
    q.requires_grad_()
    match = "autograd cannot follow"
    for written in (out, (q, k)):
        check_refused(match, lambda o=written: rope_xp.apply(q, k, out=o), out[0], q.detach())
    with torch.no_grad():
        rope_xp.apply(q, k, out=out)
        rope_xp.apply(q, k, out=(q, k))
        assert torch.equal(q, out[0])
        expanded, match = torch.zeros(1, 1, 1, 8).expand(q.shape), "elements share memory"
        check_refused(match, lambda: rope_xp.apply(q, k, out=(expanded, out[1])), out[1])


def test_out_of_jax_is_refused_with_a_way_out():
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.ones((1, 2, 3, 4))
    for call in (lambda: rope_xp.apply(x, x, out=(x, x)), lambda: HALF.rotate(x, out=np.ones(24))):
        with pytest.raises(TypeError, match="jax arrays cannot be written to.*donate"):
            call()
