"""dask: what is refused, at once or when it is computed, and chunks of unknown lengths."""

import numpy as np
import pytest
from support.lazy import equal, sample

import rope_xp
from rope_xp import RoPE, RopeError

pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is installed without its arrays")


def test_bad_numbers_are_told_at_once() -> None:
    lazy = da.ones((2, 9, 4, 8), dtype=np.float32)
    with pytest.raises(RopeError, match="for_length"):
        RoPE(scaling=rope_xp.scaling.DynamicNTK(2.0, 64)).rotate(lazy)
    with pytest.raises(RopeError, match="modulus below"):
        RoPE().rotate(lazy, np.arange(9) + (1 << 31))
    assert np.isnan(RoPE().rotate(lazy, da.arange(9) + (1 << 31)).compute()).all()


def test_refusals() -> None:
    x = sample(2, 9, 4, 8)
    lazy = da.from_array(x, chunks=3)
    with pytest.raises(TypeError, match="q is a dask array and k a numpy array"):
        rope_xp.apply(lazy, x)
    with pytest.raises(TypeError, match="to rotate is a numpy array and positions a dask"):
        RoPE().rotate(x, da.arange(9))
    with pytest.raises(TypeError, match="out= with dask arrays: .*no memory to write to"):
        rope_xp.apply(lazy, lazy, out=(lazy, lazy))
    with pytest.raises(TypeError, match="q is a dask array .* int64.*Convert it"):
        rope_xp.apply(da.ones((2, 9, 4, 8), dtype=int), lazy)
    masked = RoPE().rotate(da.ma.masked_array(x, x > 0))
    with pytest.raises(TypeError, match="not those of an ndarray"):
        masked.compute(scheduler="synchronous")


def unknown(x: np.ndarray, axis: int) -> da.Array:
    """Return x in two chunks along an axis, whose lengths dask does not know."""
    lazy = da.from_array(x, chunks=tuple(5 if i == axis else n for i, n in enumerate(x.shape)))
    return lazy[
        tuple(da.ones(n, chunks=5) > 0 if i == axis else slice(None) for i, n in enumerate(x.shape))
    ]


def test_unknown_lengths_work_where_they_do_not_matter() -> None:
    x, p = sample(9, 9, 9, 8), np.arange(9) * 7
    for axis in (0, 2):
        lazy = unknown(x, axis)
        for given in (None, p, p[None], da.from_array(p, chunks=2)):
            got = RoPE().rotate(lazy, given)
            np.testing.assert_array_equal(
                got.compute(), RoPE().rotate(x, None if given is None else p)
            )
        _, k = rope_xp.apply(lazy, lazy, p)
        np.testing.assert_array_equal(k.compute(), RoPE().rotate(x, p))
    both = np.arange(81).reshape(9, 9)
    for axis, p in ((0, both), (1, both), (1, both[0])):
        lazy = unknown(p, axis if p.ndim == 2 else 0)
        np.testing.assert_array_equal(
            RoPE().rotate(unknown(x, axis), lazy).compute(), RoPE().rotate(x, p)
        )


def test_unknown_lengths_are_refused_where_they_matter() -> None:
    x = sample(9, 9, 9, 8)
    needed = "length is not known.*compute_chunk_sizes"
    with pytest.raises(RopeError, match=needed):
        RoPE().rotate(unknown(x, 1))
    with rope_xp.use_path("portable"), pytest.raises(RopeError, match=needed):
        RoPE().rotate(unknown(x, 1))
    for p in (np.arange(9), da.arange(9)):
        with pytest.raises(RopeError, match=needed):
            RoPE().rotate(unknown(x, 1), p)
    with pytest.raises(RopeError, match="positions has an axis.*compute_chunk_sizes"):
        RoPE().rotate(da.from_array(x, chunks=3), unknown(np.arange(9), 0))
    with pytest.raises(RopeError, match="q has an axis.*compute_chunk_sizes"):
        rope_xp.apply(unknown(x, 0), da.from_array(x, chunks=3))
    more = da.concatenate([unknown(np.arange(9), 0), da.arange(1)])
    with pytest.raises(RopeError, match="3 chunks along an axis.* has 2.*compute_chunk_sizes"):
        RoPE().rotate(unknown(x, 1), more)
    for rope in (RoPE(), RoPE(rotary_dim=4)):
        with pytest.raises(RopeError, match=needed):
            rope.rotate(unknown(x, 3))
    known = unknown(x, 1)
    known.compute_chunk_sizes()
    equal(RoPE().rotate(known), RoPE().rotate(x))


@pytest.mark.parametrize("tokens", [64, 8192])
def test_blocks_that_turn_out_not_to_fit(tokens: int) -> None:
    """Of unknown lengths: large blocks take kernels, which would read as many as they need."""
    x = da.ones((1, tokens, 2, 64), chunks=(1, tokens // 2, 2, 64), dtype=np.float32)
    at = da.arange(tokens, chunks=tokens // 2)
    some = da.from_array(np.arange(tokens) % 5 > 0, chunks=tokens // 2)
    one = da.from_array(np.arange(tokens) % (tokens // 2) == 3, chunks=tokens // 2)
    rope = RoPE()
    for of_x, of_positions in ((some, at >= 0), (some, one), (one, some)):
        with pytest.raises(RopeError, match="a block of shape .* does not fit"):
            rope.rotate(x[:, of_x], at[of_positions]).compute()
    kept = np.arange(tokens)[np.arange(tokens) % 5 > 0]
    expected = rope.rotate(np.ones((1, len(kept), 2, 64), np.float32), kept)
    np.testing.assert_array_equal(rope.rotate(x[:, some], at[some]).compute(), expected)
