"""The kernel for GPUs without a GPU: every key, and accesses as wide as memory allows.

Its source is run by support/cuda_on_cpu.py as the path "cuda" of numpy. The rows "numpy-cuda" of
support/targets.py take it through the tests of every path.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rope_xp_backends.gpu.cuda_plan import COMPONENTS, COS_SIN, TABLE_LOOKUP, CudaKey
from support import cuda_on_cpu
from support.bits import same, sample
from support.exhaustive import exhaustive
from support.targets import numpy_dtype, truth

import rope_xp
from rope_xp import RoPE

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 23, 21)
POSITIONS[0] = 0
LAYOUTS = ("half", "interleaved", "interleaved_to_half")
ACCESSES = sorted({(key.dtype, key.access) for key in cuda_on_cpu.every_key()})


def place(x: np.ndarray, alignment: int) -> np.ndarray:
    """Return a copy whose address this power of two divides, and no greater one."""
    buffer = np.empty(x.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 32 + alignment
    copy = buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize(("dtype", "access"), ACCESSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_key(dtype: str, layout: str, access: int, rng: np.random.Generator) -> None:
    """New and in place, both ways, with angles of each source: the key that was meant, its bits."""
    q, k = (place(sample(rng, 2, 21, h, 64, dtype=dtype), access) for h in (5, 2))
    k[..., ::3] *= 0  # zeros of both signs, which results have too
    rope = RoPE(layout=layout)
    sections = replace(rope, position_axes=(0, 1, 2, 1) * 8)
    three = np.stack([POSITIONS, POSITIONS[::-1], POSITIONS // 7])
    angles = rope.with_tables(*rope.cos_sin(POSITIONS, 64))
    calls: list[tuple[int, Callable[..., np.ndarray]]] = [
        (TABLE_LOOKUP, partial(rope.rotate, positions=POSITIONS)),
        (TABLE_LOOKUP, partial(rope.unrotate, positions=POSITIONS)),
        (COMPONENTS, partial(sections.rotate, positions=three)),
        (COMPONENTS, partial(sections.unrotate, positions=three)),
        *((COS_SIN, angles.rotate), (COS_SIN, angles.unrotate)),
    ]
    seen, pairs = set(), (layout != "half", layout == "interleaved")
    for i, (source, turn) in enumerate(calls):
        read, write = pairs[::-1] if i % 2 else pairs
        source = COS_SIN if dtype == "float64" else source  # noqa: PLW2901  # float64 is given
        for x in (q, k):
            expected = truth(turn, x)
            in_place = place(x, access)
            for out in (place(x, access), in_place):
                turn(in_place if out is in_place else x, out=out)
                (key,) = cuda_on_cpu.get_keys()
                assert key == CudaKey(dtype, read, write, access, source, out is in_place)
                seen.add(key)
                same(out, expected)
    expected = truth(rope.apply, q, k, POSITIONS)
    results = rope.apply(q, k, POSITIONS, out=(place(q, access), place(k, access)))
    for got, e in zip(results, expected, strict=True):
        same(got, e)
    assert len(cuda_on_cpu.get_keys()) == 1  # q and k in one launch
    keys = [x for x in cuda_on_cpu.every_key() if (x.dtype, x.access) == (dtype, access)]
    assert seen == {key for key in keys if key[1:3] in (pairs, pairs[::-1])}


def padded(shape: tuple[int, ...], rows: int = 0, head_dim: int = 0) -> np.ndarray:
    """Return zeros of bfloat16 with so many components more behind each token, and each head."""
    batch, tokens, heads, d = shape
    row = heads * (d + head_dim) + rows
    x = place(np.zeros(batch * tokens * row, numpy_dtype("bfloat16")), 16)
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
        expected = truth(rope.rotate, x, POSITIONS)
        same(rope.rotate(x, POSITIONS, out=out), expected)
        assert cuda_on_cpu.get_keys()[0].access == access
        same(rope.rotate(x, POSITIONS, out=x), expected)


def test_tables_that_lie_askew(rng: np.random.Generator) -> None:
    x = place(sample(rng, 21, 2, 64, dtype="bfloat16"), 16)
    for columns, start, access in ((32, 0, 16), (33, 0, 2), (34, 0, 4), (36, 2, 4), (36, 4, 16)):
        cos, sin = (
            place(np.zeros((21, columns), np.float32), 16)[:, start : start + 32] for _ in "cs"
        )
        cos[...], sin[...] = RoPE().cos_sin(POSITIONS, 64)
        got = rope_xp.apply_tables(x, cos, sin, layout="half")
        same(got, truth(rope_xp.apply_tables, x, cos, sin, layout="half"))
        assert cuda_on_cpu.get_keys()[0].access == access


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
