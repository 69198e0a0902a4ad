"""The kernel for GPUs without a GPU: every key, and accesses as wide as memory allows.

Its source is run by support/cuda_on_cpu.py as the path "cuda" of numpy. The rows "numpy-cuda" of
support/targets.py take it through the tests of every path.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rope_xp_backends.gpu.cuda_plan import COMPONENTS, COS_SIN, TABLE_LOOKUP, CudaKey
from support import cuda_on_cpu
from support.cuda_arrays import keys_of_last_call, placed, same, sample
from support.exhaustive import exhaustive
from support.targets import numpy_dtype, truth

import rope_xp
from rope_xp import RoPE

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 23, 21)
LAYOUTS = ("half", "interleaved", "interleaved_to_half")
ACCESSES = sorted({(key.dtype, key.access) for key in cuda_on_cpu.every_key()})


@pytest.mark.parametrize(("dtype", "access"), ACCESSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_key(dtype: str, layout: str, access: int, rng: np.random.Generator) -> None:
    """New and in place, both ways, with angles of each source: the key that was meant, its bits."""
    q, k = (placed(sample(rng, 2, 21, h, 64, dtype=dtype), access) for h in (5, 2))
    rope = RoPE(layout=layout)
    sections = replace(rope, position_axes=(0, 1, 2, 1) * 8)
    cos, sin = rope.cos_sin(POSITIONS, 64)
    three = np.stack([POSITIONS, POSITIONS[::-1], POSITIONS // 7])
    calls: list[tuple[int, Callable[..., np.ndarray]]] = [
        (TABLE_LOOKUP, lambda x, **out: rope.rotate(x, POSITIONS, **out)),
        (TABLE_LOOKUP, lambda x, **out: rope.unrotate(x, POSITIONS, **out)),
        (COMPONENTS, lambda x, **out: sections.rotate(x, three, **out)),
        (COMPONENTS, lambda x, **out: sections.unrotate(x, three, **out)),
        (COS_SIN, lambda x, **out: rope_xp.apply_tables(x, cos, sin, layout=layout, **out)),
        (
            COS_SIN,
            lambda x, **out: rope_xp.apply_tables(x, cos, sin, layout=layout, inverse=True, **out),
        ),
    ]
    seen = set()
    for i, (source, turn) in enumerate(calls):
        read, write = layout != "half", layout == "interleaved"
        if i % 2:
            read, write = write, read
        source = COS_SIN if dtype == "float64" else source  # noqa: PLW2901  # float64 is given
        for x in (q, k):
            expected = truth(turn, x)
            in_place = placed(x, access)
            for out in (placed(x, access), in_place):
                turn(in_place if out is in_place else x, out=out)
                (key,) = keys_of_last_call()
                assert key == CudaKey(dtype, read, write, access, source, out is in_place)
                seen.add(key)
                same(out, expected)
    expected = truth(rope.apply, q, k, POSITIONS)
    for got, e in zip(
        rope.apply(q, k, POSITIONS, out=(placed(q, access), placed(k, access))),
        expected,
        strict=True,
    ):
        same(got, e)
    assert len(keys_of_last_call()) == 1  # q and k in one launch
    pairs = {(read, write), (write, read)}
    assert seen == {
        key
        for key in cuda_on_cpu.every_key()
        if (key.dtype, key.access) == (dtype, access) and key[1:3] in pairs
    }


def padded(shape: tuple[int, ...], rows: int = 0, head_dim: int = 0) -> np.ndarray:
    """Return zeros of bfloat16 with so many components more behind each token, and each head."""
    batch, tokens, heads, d = shape
    row = heads * (d + head_dim) + rows
    x = placed(np.zeros(batch * tokens * row, numpy_dtype("bfloat16")), 16)
    strides = (2 * tokens * row, 2 * row, 2 * (d + head_dim), 2)
    return np.lib.stride_tricks.as_strided(x, shape, strides)


# What lies askew, where all else is a multiple of 16 bytes, and the access that is left: in layout
# half and interleaved. A rotation by 6 pairs is shared out by 2 pairs a thread.
ASKEW: dict[str, tuple[Callable[[], np.ndarray], dict[str, int], tuple[int, int]]] = {
    "nothing": (lambda: padded((2, 21, 8, 64), 8, 8), {}, (16, 16)),
    "heads": (lambda: padded((2, 21, 8, 64), 0, 2), {}, (4, 4)),
    "tokens": (lambda: padded((2, 21, 8, 64), 4), {}, (8, 8)),
    "batches": (lambda: padded((2, 21, 8, 66), 8, 6)[..., :64], {}, (16, 16)),
    "slice": (lambda: padded((2, 21, 8, 64)), {"rotary_dim": 32, "rotary_offset": 1}, (2, 2)),
    "pairs": (lambda: padded((2, 21, 8, 64)), {"rotary_dim": 12}, (4, 8)),
    "what passes": (lambda: padded((2, 21, 8, 66), 0, 6), {"rotary_dim": 64}, (4, 4)),
}


@pytest.mark.parametrize("kind", ASKEW)
def test_accesses_are_as_wide_as_fits(kind: str, rng: np.random.Generator) -> None:
    make, slices, accesses = ASKEW[kind]
    for layout, access in zip(("half", "interleaved"), accesses, strict=True):
        x, out, rope = make(), make(), RoPE(layout=layout, **slices)
        x[...] = sample(rng, *x.shape, dtype="bfloat16")
        same(rope.rotate(x, POSITIONS, out=out), truth(rope.rotate, x, POSITIONS))
        assert keys_of_last_call()[0].access == access


def test_tables_that_lie_askew(rng: np.random.Generator) -> None:
    x = placed(sample(rng, 21, 2, 64, dtype="bfloat16"), 16)
    for columns, start, access in ((32, 0, 16), (33, 0, 2), (34, 0, 4), (36, 2, 4), (36, 4, 16)):
        cos, sin = (
            placed(np.zeros((21, columns), np.float32), 16)[:, start : start + 32] for _ in "cs"
        )
        cos[...], sin[...] = RoPE().cos_sin(POSITIONS, 64)
        got = rope_xp.apply_tables(x, cos, sin, layout="half")
        same(got, truth(rope_xp.apply_tables, x, cos, sin, layout="half"))
        assert keys_of_last_call()[0].access == access


@pytest.mark.parametrize("head_dim", [2, 6, 80, 576, exhaustive(2048)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_head_dim(head_dim: int, layout: str, rng: np.random.Generator) -> None:
    """Beside powers of two; and so large that a block has no thread for each pair."""
    for dtype in ("bfloat16", "float64"):
        x, rope = sample(rng, 2, 3, 2, head_dim, dtype=dtype), RoPE(layout=layout)
        expected = truth(rope.rotate, x, POSITIONS[:3])
        same(rope.rotate(x, POSITIONS[:3]), expected)
        rope.rotate(x, POSITIONS[:3], out=x)
        same(x, expected)


@pytest.mark.parametrize(
    ("rotary_dim", "offset"), [(64, 448), (64, 0), (12, 64), (16, 3), (2, 509)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_passes_through(
    rotary_dim: int, offset: int, layout: str, rng: np.random.Generator
) -> None:
    """q in place and k not: what is left of k is copied, and that of q not written."""
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
    q, k = (sample(rng, 2, 3, h, 512, dtype="bfloat16") for h in (3, 1))
    expected = truth(rope.apply, q, k, POSITIONS[:3])
    other = np.zeros_like(k)
    rope.apply(q, k, POSITIONS[:3], out=(q, other))
    same(q, expected[0])
    same(other, expected[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeros_have_the_sign_that_they_have_elsewhere(layout: str) -> None:
    """Also where the angle is zero, and turned back."""
    numbers = np.array([0.0, -0.0, 1.0, -1.0], np.float32)
    x = np.stack(np.meshgrid(numbers, numbers), -1).reshape(4, 1, 1, 8).repeat(3, 1)
    rope = RoPE(layout=layout)
    for turn in (rope.rotate, rope.unrotate):
        expected = truth(turn, x, [0, -3, 70_000])
        assert (expected == 0).any()
        np.testing.assert_array_equal(np.signbit(turn(x, [0, -3, 70_000])), np.signbit(expected))


def test_what_the_path_declines(rng: np.random.Generator) -> None:
    x = sample(rng, 3, 2, 64)
    for view, reason in ((x[..., ::2], "not contiguous"), (x[..., ::-1], "not contiguous")):
        with pytest.raises(rope_xp.RopeError, match=reason):
            RoPE().rotate(view)
