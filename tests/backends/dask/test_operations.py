"""dask: chunks and positions of every kind. The rest is tested with others."""

from functools import partial

import numpy as np
import pytest
from support.lazy import equal, sample
from support.targets import ALL_FLOATS

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._arguments import parse

da = pytest.importorskip("dask.array", reason="dask or its arrays are not installed")

ROPES = {
    "half": RoPE(layout="half"),
    "slice": RoPE(rotary_dim=6, rotary_offset=-7, base=5e5),
    "scaled": RoPE(layout="interleaved_to_half", scaling=rope_xp.scaling.YaRN(4.0, 64)),
}
CHUNKS = [
    ((2,), (9,), (4,), (8,)),
    ((1, 1), (2, 4, 3), (3, 1), (8,)),
    ((2,), (1,) * 9, (1, 1, 2), (3, 5)),
]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_every_operation_keeps_chunks_and_bits(chunks, rope: RoPE) -> None:
    x, p = sample(2, 9, 4, 8), np.arange(9) * 1000 + 5
    lazy = da.from_array(x, chunks=chunks)
    for turn in (
        lambda x: rope.rotate(x, p),
        lambda x: rope.unrotate(x, p),
        lambda x: rope.rerotate(x, p, p[::-1]),
        lambda x: rope.rerotate(x, None, p),
    ):
        got = turn(lazy)
        assert got.chunks == (*chunks[:-1], (8,))
        equal(got, turn(x))


@pytest.mark.parametrize("dtype", ALL_FLOATS)
def test_large_blocks_run_the_compiled_kernels(dtype: str) -> None:
    """Blocks take numpy's fast path, whose kernels are compiled here if they were not."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed")
    x = sample(1, 24, 2, 16, dtype=dtype)
    lazy = da.from_array(x, chunks=(1, 7, 1, 16))
    assert rope_xp.explain(x, x).path == "llvm"
    whole = np.arange(24)
    for p in (None, whole, whole.astype(np.int32), np.linspace(-3.5, 90_000.25, 24)):
        for positions in (p, None if p is None else da.from_array(p, chunks=5)):
            equal(RoPE().rotate(lazy, positions), RoPE().rotate(x, p))


AXES = [("bhsd", (2, 4, 9, 8)), ("sbhd", (9, 2, 4, 8)), ("sxhbd", (9, 2, 3, 2, 8)), ("sd", (9, 8))]


@pytest.mark.parametrize(("axes", "shape"), AXES)
def test_axes_and_batched_positions(axes: str, shape: tuple[int, ...]) -> None:
    x = sample(*shape)
    lazy = da.from_array(x, chunks=tuple(max(n // 2, 1) for n in shape))
    batch = [n for n, name in zip(shape, axes, strict=True) if name not in "shd"]
    full = np.random.default_rng(1).integers(0, 1 << 30, (*batch, 9))
    for p in (full, full[..., :1], full[:1], full + 0.25) if batch else (full, full + 0.25):
        expected = RoPE().rotate(x, p, axes=axes)
        equal(RoPE().rotate(lazy, p, axes=axes), expected)
        for chunks in (-1, 2):
            equal(RoPE().rotate(lazy, da.from_array(p, chunks=chunks), axes=axes), expected)


def test_position_components() -> None:
    rope = RoPE(position_axes=(0, 1, 2, 0))
    x, p = sample(2, 9, 4, 8), np.random.default_rng(1).integers(0, 5000, (3, 2, 9))
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    for given in (p, da.from_array(p, chunks=2), p / 7, da.from_array(p / 7, chunks=(1, 2, 5))):
        host = given.compute() if isinstance(given, da.Array) else given
        equal(rope.rotate(lazy, given), rope.rotate(x, host))
        for got, expected in zip(rope.cos_sin(given, 8), rope.cos_sin(host, 8), strict=True):
            np.testing.assert_array_equal(np.asarray(got), expected)
    equal(rope.rotate(lazy), rope.rotate(x))
    equal(rope.rotate(lazy, p[:, 0]), rope.rotate(x, p[:, 0]))


def test_grouped_heads_and_keys_of_their_own() -> None:
    q, k = sample(2, 3, 4, 8), sample(2, 7, 2, 8, dtype="float64")
    p, kp = [100, 101, 102], np.arange(96, 103)
    lazy = da.from_array(q, chunks=(1, 2, 3, 8)), da.from_array(k, chunks=(2, 3, 1, 8))
    for given in (kp, da.from_array(kp, chunks=4)):
        got = rope_xp.apply(*lazy, p, k_positions=given)
        for g, e in zip(got, rope_xp.apply(q, k, p, k_positions=kp), strict=True):
            equal(g, e)


def test_tables_of_the_caller() -> None:
    x, cos_sin = sample(2, 9, 4, 8), RoPE(rotary_dim=6).cos_sin(np.arange(18).reshape(2, 9), 8)
    lazy = da.from_array(x, chunks=(1, 4, 2, 5))
    expected = rope_xp.apply_tables(x, *cos_sin)
    equal(rope_xp.apply_tables(lazy, *cos_sin), expected)
    equal(rope_xp.apply_tables(lazy, *(da.from_array(t, chunks=2) for t in cos_sin)), expected)


@pytest.mark.parametrize("kind", ["int32", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("wide", [False, True])
def test_tables_of_lazy_positions(kind: str, wide: bool) -> None:
    p = np.arange(30).reshape(2, 15).astype(kind)
    lazy = da.from_array(p, chunks=(1, 4))
    tables, dtype = RoPE().cos_sin, np.float64 if wide else None
    for got, expected in zip(tables(lazy, 8, dtype=dtype), tables(p, 8, dtype=dtype), strict=True):
        assert got.chunks == (*lazy.chunks, (4,))
        equal(got, expected)


def test_tables_of_one_position() -> None:
    for at in (5, 5.5):
        lazy = RoPE().cos_sin(da.asarray(np.array(at)), 8)
        for got, expected in zip(lazy, RoPE().cos_sin(at, 8), strict=True):
            np.testing.assert_array_equal(got.compute(), expected)


def test_blocks_of_another_library_than_their_positions() -> None:
    """Positions of numpy follow a block to where it lies: cupy's in earnest, torch's here."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from rope_xp_backends.dask import library, paths

    x = sample(2, 9, 4, 8)
    call = parse.rotate(RoPE(), x, np.arange(9), None, None, False)
    source = library.remove_arrays(call.angles[0])
    turn = partial(paths.rotate_block, call.spec, source, ((1,),))
    got = turn(torch.from_numpy(x), np.arange(9))
    np.testing.assert_array_equal(got.numpy(), RoPE().rotate(x))
    with pytest.raises(TypeError, match="a block is a numpy array and its positions a torch array"):
        turn(x, torch.arange(9))


def test_the_path_is_told_and_can_be_asked_for() -> None:
    x = sample(2, 9, 4, 8)
    lazy = da.from_array(x, chunks=(1, 4, 2, 8))
    assert str(rope_xp.explain(lazy, lazy)) == "dask: blockwise"
    expected = RoPE().rotate(x)
    with rope_xp.use_path("blockwise"):
        equal(RoPE().rotate(lazy), expected)
        with pytest.raises(RopeError, match="numpy arrays have none of that name"):
            RoPE().rotate(x)


def test_positions_may_change_after_the_call() -> None:
    x, p = sample(2, 9, 4, 8), np.arange(9, dtype=np.int32)
    lazy = RoPE().rotate(da.from_array(x, chunks=3), p)
    p += 1
    equal(lazy, RoPE().rotate(x))
