"""The kernel for GPUs, as test_kernel.py runs it: positions, their components, and tables."""

from typing import Any

import pytest
from rope_xp_backends.torch.library import Torch
from support.targets import truth
from support.tensors import (
    DTYPES,
    LAYOUTS,
    ON_A_GPU,
    anywhere,
    check,
    right,
    rotation,
    same,
    sample,
    tensor,
)

import rope_xp
from rope_xp import RoPE

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


pytestmark = [pytest.mark.usefixtures("_by_the_kernel"), pytest.mark.covering, *ON_A_GPU]


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


def test_positions_out_of_range_give_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where nobody reads them before the kernel does."""
    monkeypatch.setattr(Torch, "host_view", lambda *_: None)
    top = 1 << 31
    outside = tensor([top, -top, top << 20, (1 << 63) - 1, -(1 << 63)])
    x = sample(5, 3, 8)
    assert RoPE().rotate(x, outside).isnan().all()
    assert not RoPE().rotate(x, outside.sign() * (top - 1)).isnan().any()
    assert RoPE().rotate(x, tensor([-top] * 5, torch.int32)).isnan().all()
    check(rotation(RoPE(), tensor([0, top, 5, -top, 7]), "shd"), x)


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
    same(scaled.rotate(x, images, axes="xbshd").detach(), expected)
