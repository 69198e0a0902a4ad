"""The kernel for GPUs beside the portable path, on a GPU or in Triton's interpreter:

TRITON_INTERPRET=1 pytest -n 0 tests/backends/triton/test_kernel.py
"""

import pytest
from rope_xp_backends.torch.library import Torch
from support.equality import LAYOUTS
from support.rules import Temperature
from support.targets import truth
from support.tensors import (
    DTYPES,
    ON_A_GPU,
    POSITIONS,
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [2, 6, 80])
def test_heads_of_every_width_equal_the_portable_path(head_dim, layout):
    for dtype in DTYPES:
        q, k = (sample(2, 5, n, head_dim, dtype=dtype, seed=n) for n in (3, 1))
        check(rotation(RoPE(layout=layout), POSITIONS), q, k)


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "offset"), [(8, 16), (6, 5), (2, -2)])
def test_slices_equal_the_portable_path(rotary_dim, offset, layout):
    for head_dim in (24, 37):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        for turn in (rope.rotate, rope.unrotate):
            x = sample(2, 5, 3, head_dim, dtype=torch.float32 if head_dim == 37 else torch.bfloat16)
            check(lambda x, out=None, turn=turn: turn(x, POSITIONS, out=out), x)


# Rotated slice, its offset, and length of weights.
NORMS = [(24, 0, 24), (8, 4, 24), (8, 4, 8), (8, -8, None)]


def pair_sizes(y, layout, rotary_dim, offset):
    """Return the larger modulus of each pair, and of each other component."""
    size = y.abs().clone()
    shape = (-1, 2) if layout == "interleaved" else (2, -1)
    pairs = size[..., offset % 24 :][..., :rotary_dim].unflatten(-1, shape)
    pairs[...] = pairs.amax(shape.index(2) - 2, keepdim=True)
    return size


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "offset", "count"), NORMS)
def test_norms_are_within_two_ulp(rotary_dim, offset, count, layout):
    """Also of calls that are cached: new, again, in place, by weights anywhere."""
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
    for i, dtype in enumerate(DTYPES):
        arrays = tuple(sample(2, 5, n, 24, dtype=dtype, seed=n) for n in (3, 1))
        weights = sample(2 * (count or 1) + 1, dtype=DTYPES[-i])[1:].unflatten(0, (2, -1))
        norm = rope_xp.QKNorm(*(weights if count else ()), offset=float(i % 2))
        wide = [x.float() if dtype.itemsize == 2 else x.clone() for x in arrays]
        expected = truth(rope.apply, *wide, POSITIONS, norm=norm)
        for out in (None, None, None, arrays):
            got = rope.apply(*arrays, POSITIONS, norm=norm, out=out)
            for x, y in zip(got, expected, strict=True):
                # Sums in another order move the factor by an ulp at most, and each product rounds.
                bound = 2 * torch.finfo(y.dtype).eps * pair_sizes(y, layout, rotary_dim, offset)
                if dtype.itemsize == 2:  # rounded, which the interpreter does not do to bfloat16
                    bound += torch.finfo(dtype).eps * y.abs() + torch.finfo(dtype).tiny
                assert x.dtype == dtype
                assert ((x.to(y.dtype) - y).abs() <= bound).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeros_have_the_sign_of_the_portable_path(layout):
    """Also where the angle is zero, and turned back; Triton takes -x for 0 - x."""
    numbers = tensor([0.0, -0.0, 1.0, -1.0], torch.float32)
    x = torch.cartesian_prod(numbers, numbers).reshape(4, 1, 1, 8).expand(-1, 3, -1, -1)
    rope = RoPE(layout=layout)
    for turn in (rope.rotate, rope.unrotate):
        for dtype in DTYPES:
            expected = truth(turn, x.to(dtype), [0, -3, 70_000])
            got = turn(x.to(dtype).contiguous(), tensor([0, -3, 70_000]))
            assert (expected == 0).any()
            assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [1, 2, 4])
def test_rows_at_any_address_leave_their_neighbours(start, dtype):
    """Which no access of 16 bytes can read."""
    for layout in LAYOUTS:
        memory = sample(start + 2 * 5 * 3 * 19, dtype=dtype)
        after, before = (m[start:].unflatten(0, (2, 5, 3, 19)) for m in (memory, memory.clone()))
        first = memory[:start].clone()
        check(rotation(RoPE(layout=layout), POSITIONS), after[..., :16])
        assert torch.equal(after[..., 16:], before[..., 16:])
        assert torch.equal(memory[:start], first)


def test_positions_out_of_range_give_nan(monkeypatch):
    """As on a GPU, where nobody reads them before the kernel does."""
    monkeypatch.setattr(Torch, "host_view", lambda *_: None)
    top = 1 << 31
    outside = tensor([top, -top, top << 20, (1 << 63) - 1, -(1 << 63)])
    x = sample(5, 3, 8)
    assert RoPE().rotate(x, outside).isnan().all()
    assert not RoPE().rotate(x, outside.sign() * (top - 1)).isnan().any()
    assert RoPE().rotate(x, tensor([-top] * 5, torch.int32)).isnan().all()
    check(rotation(RoPE(), tensor([0, top, 5, -top, 7]), "shd"), x)


def test_components_under_vmap_gradients_and_factors_equal_the_portable_path():
    images, x = anywhere((3, 4, 2, 5)), sample(4, 2, 5, 3, 12)
    rope = RoPE(position_axes=(0, 1, 2, 2, 1, 0))
    check(rotation(rope, images, "xbshd"), x)
    check(rotation(rope, images.transpose(1, 2), "bxshd"), x.transpose(0, 1))
    own = torch.func.vmap(rope.rotate, (0, 1))
    same(own(x, images), right(rotation(rope, images, "xbshd"), x))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(rope.rotate(x, images, axes="xbshd"), x, x.detach())
    same(gradient, truth(rope.unrotate, x.detach(), images, axes="xbshd"))
    scaled = RoPE(position_axes=rope.position_axes, scaling=Temperature(3.0))
    expected = truth(scaled.rotate, x.detach(), images, axes="xbshd")
    same(scaled.rotate(x, images, axes="xbshd").detach(), expected)
