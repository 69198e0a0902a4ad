"""The kernel for GPUs, with all that leads to it, beside the portable path.

On a GPU; or in Triton's interpreter, on tensors of the CPU:

    TRITON_INTERPRET=1 pytest tests/test_triton_kernel.py

tests/test_triton.py does the latter, as it is fixed when kernels are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rope_xp_backends.gpu import triton_plan
from rope_xp_backends.torch import op
from targets import INTERPRETED, truth

import rope_xp
from rope_xp import RoPE
from rope_xp._contract.path import Unavailable

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

DEVICE = "cpu" if INTERPRETED else "cuda"
if not INTERPRETED:
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
    pytestmark = [pytest.mark.gpu, no_gpu]

LAYOUTS = ("interleaved", "half", "interleaved_to_half")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POSITIONS = [0, 2047, 70_000, (1 << 31) - 1, -1]
Rotate = Callable[..., Any]


@pytest.fixture(autouse=True)
def _by_the_kernel() -> Iterator[None]:
    with rope_xp.use_backend("triton"):
        yield


@pytest.fixture(params=[False, True], ids=["32 bits", "64 bits"])
def _offsets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Once more as if every tensor had more than 2**31 elements."""
    if request.param:
        monkeypatch.setattr(triton_plan, "_INT32", 0)
    triton_plan.plan.cache_clear()
    yield
    triton_plan.plan.cache_clear()


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype)


def tensor(numbers: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=DEVICE)


def anywhere(shape: tuple[int, ...]) -> torch.Tensor:
    """Return positions of all sizes."""
    return tensor(np.random.default_rng(0).integers(0, 1 << 31, shape))


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that bits are equal. ``expected`` is not yet rounded where they are bfloat16.

    The interpreter cuts float32 off to bfloat16, so there each may be rounded down as well.
    """
    assert got.shape == expected.shape
    if got.dtype != torch.bfloat16:
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        return
    nearest = expected.to(torch.bfloat16)
    right = (got.view(torch.int16) == nearest.view(torch.int16)) | (got.isnan() & nearest.isnan())
    if INTERPRETED:
        right |= got.view(torch.int16) == expected.float().view(torch.int32) >> 16
    assert right.all()


def right(rotate: Rotate, *arrays: torch.Tensor) -> Any:
    """Return what the portable path returns, in float32 for bfloat16."""
    contiguous = [x.float() if x.dtype == torch.bfloat16 else x.clone() for x in arrays]
    return truth(rotate, *contiguous)


def check(rotate: Rotate, *arrays: torch.Tensor) -> None:
    """Compare new results, and results written over the arrays, with the portable path's."""
    expected = right(rotate, *arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    before = [x.clone() for x in arrays]
    got = rotate(*arrays)
    for x, y, z in zip(got if isinstance(got, tuple) else (got,), expected, arrays, strict=True):
        assert x.dtype == z.dtype
        same(x, y)
    for x, y in zip(arrays, before, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    if any(0 in x.stride() for x in arrays):
        return
    rotate(*arrays, out=arrays if len(arrays) > 1 else arrays[0])
    for x, y in zip(arrays, expected, strict=True):
        same(x, y)


def rotation(rope: RoPE, positions: Any, axes: str = "bshd") -> Rotate:
    def rotate(*arrays: torch.Tensor, out: Any = None) -> Any:
        if len(arrays) == 1:
            return rope.rotate(*arrays, positions, axes=axes, out=out)
        return rope.apply(*arrays, positions, axes=axes, out=out)

    return rotate


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [2, 6, 72, 80, 96])
def test_every_width_of_heads(head_dim: int, layout: str) -> None:
    for dtype in DTYPES:
        q, k = (sample(2, 5, n, head_dim, dtype=dtype, seed=n) for n in (3, 1))
        check(rotation(RoPE(layout=layout), POSITIONS), q, k)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_wider_than_a_warp(dtype: torch.dtype, layout: str) -> None:
    check(rotation(RoPE(layout=layout), POSITIONS), sample(1, 5, 2, 512, dtype=dtype))
    check(rotation(RoPE(layout=layout), POSITIONS), sample(1, 5, 1, 1024, dtype=dtype))


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "offset"), [(8, 0), (8, 16), (16, -16), (6, 5), (2, -2)])
def test_slices(rotary_dim: int, offset: int, layout: str) -> None:
    for head_dim in (24, 37):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        for turn in (rope.rotate, rope.unrotate):
            x = sample(2, 5, 3, head_dim, dtype=torch.float32 if head_dim == 37 else torch.bfloat16)
            check(lambda x, out=None, turn=turn: turn(x, POSITIONS, out=out), x)


def test_one_array_in_place_and_one_not() -> None:
    rope = RoPE(rotary_dim=4, layout="interleaved_to_half")
    q, k, other = sample(2, 5, 4, 8), sample(2, 5, 2, 8), torch.zeros(2, 5, 2, 8, device=DEVICE)
    expected = right(rotation(rope, POSITIONS), q, k)
    rope.apply(q, k, POSITIONS, out=(q, other))
    same(q, expected[0])
    same(other, expected[1])


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("shape", [(7,), (3, 7), (1, 7), (3, 1)])
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd", "hbsd", "hsbd"])
def test_positions_and_axes(axes: str, shape: tuple[int, ...]) -> None:
    sizes = {"b": 3, "s": 7, "h": 5, "d": 8}
    positions = anywhere(shape)
    q = sample(*(sizes[n] for n in axes))
    k = sample(*(sizes[n] if n != "h" else 2 for n in axes), seed=1)
    check(rotation(RoPE(), positions, axes), q, k)
    if axes == "bshd":
        check(rotation(RoPE(), positions.int()), q, k)
    if shape == (7,):
        check(rotation(RoPE(), None, axes), q, k)


def test_positions_out_of_range_give_no_number() -> None:
    top = 1 << 31
    outside = tensor([top, -top, top << 20, (1 << 63) - 1, -(1 << 63)])
    x = sample(5, 3, 8)
    assert RoPE().rotate(x, outside).isnan().all()
    assert not RoPE().rotate(x, outside.sign() * (top - 1)).isnan().any()
    assert RoPE().rotate(x, tensor([-top] * 5, torch.int32)).isnan().all()
    check(rotation(RoPE(), tensor([0, top, 5, -top, 7]), "shd"), x)


def test_slices_of_one_projection_in_place() -> None:
    for layout in LAYOUTS:
        qkv = sample(2, 5, (4 + 2 + 2) * 16)
        before = qkv.clone()
        q, k, v = (x.unflatten(-1, (-1, 16)) for x in qkv.split((64, 32, 32), -1))
        check(rotation(RoPE(layout=layout, rotary_dim=8), POSITIONS), q, k)
        assert torch.equal(v.flatten(-2), before[..., 96:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_memory_that_begins_anywhere(start: int, dtype: torch.dtype) -> None:
    """Rows that no access of 16 bytes can read, and whose neighbours must not change."""
    for layout in LAYOUTS:
        memory = sample(start + 2 * 5 * 3 * 19, dtype=dtype)
        before = memory.clone()
        x = memory[start:].unflatten(0, (2, 5, 3, 19))[..., :16]
        check(rotation(RoPE(layout=layout), POSITIONS), x)
        outside = memory[start:].unflatten(0, (2, 5, 3, 19))[..., 16:]
        unchanged = before[start:].unflatten(0, (2, 5, 3, 19))[..., 16:]
        assert torch.equal(outside, unchanged)
        assert torch.equal(memory[:start], before[:start])


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one head for all": lambda x: x[:, :, :1].expand_as(x),
    "one batch for all": lambda x: x[:1].expand_as(x),
    "every second token": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "every second component": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "head_dim first": lambda x: x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "heads apart": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str) -> None:
    x = VIEWS[view](sample(2, 5, 4, 8))
    expected = right(rotation(RoPE(), POSITIONS), x.contiguous())
    same(RoPE().rotate(x, POSITIONS), expected)


@pytest.mark.parametrize("folds", [True, False])
def test_many_batch_axes(folds: bool) -> None:
    x = sample(3, 2, 4, 5, 2, 8)
    if not folds:
        x = x.permute(2, 1, 0, 3, 4, 5)
    shapes = [(5,), (1, 1, 5), (x.shape[0], 1, 1, 5), (*x.shape[:3], 5), (x.shape[1], 1, 1)]
    for shape in shapes:
        positions = anywhere(shape)
        check(rotation(RoPE(), positions, "xybshd"), x)
        tables = RoPE().cos_sin(positions, 8)
        check(lambda x, out=None, t=tables: rope_xp.apply_tables(x, *t, axes="xybshd", out=out), x)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (1, 5), (2, 1)])
def test_tables_of_the_caller(shape: tuple[int, ...]) -> None:
    for dtype, layout in zip(DTYPES, (*LAYOUTS, "half"), strict=True):
        x = sample(2, 5, 3, 21, dtype=dtype)
        cos, sin = (sample(*shape, 5, dtype=dtype, seed=i) for i in (1, 2))
        bent = cos.mT.contiguous().mT if cos.ndim > 1 else cos
        for tables in ((cos, sin), (bent, sin), (bent, bent)):

            def rotate(
                x: torch.Tensor, out: Any = None, tables: Any = tables, layout: str = layout
            ) -> Any:
                cos, sin = (t.to(x.dtype) for t in tables)
                return rope_xp.apply_tables(x, cos, sin, layout=layout, rotary_offset=7, out=out)

            check(rotate, x)


@pytest.mark.parametrize("heads", [(1, 1), (32, 8), (33, 1), (28, 4), (71, 1), (9, 3)])
def test_any_number_of_heads(heads: tuple[int, int]) -> None:
    for tokens in (1, 9):
        for batch in (1, 2):
            q, k = (sample(batch, tokens, n, 8, seed=n) for n in heads)
            check(rotation(RoPE(), POSITIONS[-tokens:] if tokens == 1 else None), q, k)


def test_more_programs_than_processors() -> None:
    check(rotation(RoPE(), None), sample(1, 1500, 2, 64), sample(1, 1500, 1, 64, seed=1))


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize(
    ("axes", "shape"), [("bshd", (5,)), ("hbsd", (2, 5)), ("bshd", (1, 5)), ("sbhd", (2, 1))]
)
def test_positions_of_several_components(axes: str, shape: tuple[int, ...]) -> None:
    sizes = {"b": 2, "s": 5, "h": 3, "d": 24}
    x = sample(*(sizes[n] for n in axes))
    positions = anywhere((3, *shape))
    positions[1] = -positions[1]
    for layout, read in (("half", (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)), ("interleaved", (2, 1, 0) * 3)):
        rope = RoPE(layout=layout, position_axes=read, rotary_dim=2 * len(read))
        check(rotation(rope, positions, axes), x)
        check(rotation(rope, positions.int(), axes), x, x.clone())


def test_components_in_more_ways() -> None:
    images, x = anywhere((3, 4, 2, 5)), sample(4, 2, 5, 3, 12)
    rope = RoPE(position_axes=(0, 1, 2, 2, 1, 0))
    check(rotation(rope, images, "xbshd"), x)
    check(rotation(rope, images.transpose(1, 2), "bxshd"), x.transpose(0, 1))
    own = torch.func.vmap(rope.rotate, (0, 1))
    same(own(x, images), right(rotation(rope, images, "xbshd"), x))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(rope.rotate(x, images, axes="xbshd"), x, x.detach())
    turned = truth(rope.unrotate, x.detach(), images, axes="xbshd")
    same(gradient, turned)

    class Temperature(rope_xp.scaling.Linear):
        attention_factor = 1.1

    scaled = RoPE(position_axes=rope.position_axes, scaling=Temperature(3.0))
    expected = truth(scaled.rotate, x.detach(), images, axes="xbshd")
    # The factor is multiplied by digits here and by angles there: 2 roundings of |x| up to 5.
    torch.testing.assert_close(
        scaled.rotate(x, images, axes="xbshd").detach(), expected, rtol=0, atol=3e-6
    )


def test_where_the_kernel_fails_components_are_looked_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, images = sample(2, 5, 3, 12), anywhere((3, 2, 5))
    rope = RoPE(position_axes=(0, 1, 2, 2, 1, 0))
    expected = right(rotation(rope, images), x)

    def fail(*_: object) -> None:
        raise Unavailable

    monkeypatch.setitem(op.RUNS, DEVICE, fail)
    same(rope.rotate(x, images), expected)


def test_fractions_and_differences() -> None:
    """Angles that the kernel is given as cos and sin."""
    q, k = sample(2, 5, 4, 16), sample(2, 5, 2, 16, seed=1)
    check(rotation(RoPE(), np.array(POSITIONS) / 3), q, k)
    images = np.stack([np.array(POSITIONS) / n for n in (7, 5, 3)])
    rope = RoPE(layout="half", position_axes=(0, 0, 0, 1, 1, 1, 2, 2))
    check(rotation(rope, images), q, k)
    check(rotation(RoPE(layout="half", position_axes=(0, 1, 0, 1)), None), q[..., :8], k[..., :8])
    check(
        lambda x, out=None: RoPE().rerotate(x, POSITIONS, POSITIONS[::-1], out=out),
        sample(2, 5, 4, 16),
    )


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # numpy's, of infinities
def test_all_numbers_of_16_bits() -> None:
    x = tensor(np.arange(1 << 16).astype(np.int16), torch.int16).view(torch.float16)
    for layout in LAYOUTS:
        check(rotation(RoPE(layout=layout), 70_000 + np.arange(512), "shd"), x.view(512, 1, 128))
