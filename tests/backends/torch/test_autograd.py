"""torch: derivatives of plain operations, and the transforms of torch.func."""

from __future__ import annotations

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE

torch = pytest.importorskip("torch")

LAYOUTS = ("interleaved", "half", "interleaved_to_half")
POSITIONS = torch.tensor([0, 70_000, 1_000_000, -3, (1 << 31) - 1])


def sample(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return made.requires_grad_(grad)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout: str) -> None:
    rope = RoPE(layout=layout, rotary_dim=4, rotary_offset=1)
    x = sample(5, 2, 6, dtype=torch.float64, grad=True)
    check = (lambda x: rope.rotate(x, POSITIONS), x)
    assert torch.autograd.gradcheck(*check, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(*check)
    with torch.no_grad():
        cos, sin = rope.cos_sin(POSITIONS, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout),
        (x, cos.requires_grad_(), sin.requires_grad_()),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_is_the_inverse_rotation(dtype: torch.dtype) -> None:
    rope = RoPE(layout="half")
    q, k = sample(1, 5, 4, 16, dtype=dtype, grad=True), sample(1, 5, 2, 16, dtype=dtype, grad=True)
    rotated = rope.apply(q, k, POSITIONS)
    grads = [sample(*r.shape, dtype=dtype) for r in rotated]
    torch.autograd.backward(rotated, grads)
    for x, g in zip((q, k), grads, strict=True):
        torch.testing.assert_close(x.grad, rope.unrotate(g, POSITIONS), rtol=0, atol=0)


def test_gradient_of_float_positions() -> None:
    """d rotate / d p is the derivative through the fraction: the digits are constants."""
    positions = torch.tensor([0.5, 1000.25], dtype=torch.float64, requires_grad=True)
    x = sample(2, 1, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: RoPE().rotate(x, p), positions)
    single = positions.detach().float().requires_grad_()
    RoPE().rotate(x.float(), single).sum().backward()
    RoPE().rotate(x, positions).sum().backward()
    torch.testing.assert_close(single.grad.double(), positions.grad, rtol=0, atol=1e-5)


def test_func_transforms() -> None:
    rope, x = RoPE(), sample(3, 5, 2, 8)
    batched = torch.func.vmap(lambda x: rope.rotate(x, POSITIONS))(x)
    torch.testing.assert_close(batched, rope.rotate(x, POSITIONS), rtol=0, atol=0)
    own = torch.stack([POSITIONS, POSITIONS - 1, POSITIONS // 2])
    got = torch.func.vmap(lambda x, p: rope.rotate(x, p))(x, own)
    torch.testing.assert_close(got, rope.rotate(x, own), rtol=0, atol=0)
    grad = torch.func.grad(lambda x: (rope.rotate(x, POSITIONS) * x).sum())(x)
    expected = rope.rotate(x, POSITIONS) + rope.unrotate(x, POSITIONS)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-6)
    _, tangent = torch.func.jvp(lambda x: rope.rotate(x, POSITIONS), (x,), (x,))
    torch.testing.assert_close(tangent, rope.rotate(x, POSITIONS), rtol=0, atol=0)
    jacobian = torch.func.jacrev(lambda x: rope.rotate(x, [3], axes="sd"))(x[0, 0, :1])
    assert jacobian.shape == (1, 8, 1, 8)


def test_transforms_leave_no_wrappers_in_the_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def fake(f):
        with FakeTensorMode(allow_non_fake_inputs=True):
            f(x)

    x = sample(3, 2, 8)
    for i, transform in enumerate(
        (
            lambda f: torch.func.functionalize(f)(x),
            lambda f: make_fx(lambda x: torch.func.functionalize(f)(x))(x),
            lambda f: torch.func.grad(lambda x: f(x).sum())(x),
            fake,
        )
    ):
        rope = RoPE(base=4000.0 + i)
        transform(rope.rotate)
        np.testing.assert_array_equal(rope.rotate(x).numpy(), rope.rotate(x.numpy()))


def test_in_place_under_vmap() -> None:
    x = sample(3, 5, 2, 8)
    expected = RoPE().rotate(x)
    got = torch.func.vmap(lambda x: RoPE().rotate(x, out=x))(x.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
