"""What every supported version of torch does; see .ci/versions."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support import layers
from torch.utils.checkpoint import checkpoint

from rope_xp import RoPE

pytestmark = pytest.mark.slow  # the short suite has tests/backends/torch

ROPES = {name: layers.ROPES[name] for name in ("half", "yarn", "sections")}


def inputs(rope: RoPE, dtype: torch.dtype, tokens: int = 5) -> list[torch.Tensor]:
    *arrays, positions = layers.inputs(layers.TORCH, rope, tokens)
    return [*(x.to(dtype) for x in arrays), positions]


def expected(rope: RoPE, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rotated = rope.rotate(x.detach().double().numpy(), positions.numpy())
    return torch.from_numpy(np.ascontiguousarray(rotated)).to(x.dtype)


ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2.0**-6, torch.float64: 1e-13}
"""Half an ulp of numbers below 4, but for angles of float32."""


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_results_and_gradients_equal_float64(name, dtype):
    rope = ROPES[name]
    q, k, positions = inputs(rope, dtype)
    for x, y in zip((q, k), rope.apply(q, k, positions), strict=True):
        torch.testing.assert_close(y, expected(rope, x, positions), rtol=0, atol=ROUNDING[dtype])
    q.requires_grad_()
    (gradient,) = torch.autograd.grad(rope.rotate(q, positions).sum(), q)
    back = rope.unrotate(torch.ones_like(q), positions) * rope.attention_factor**2
    torch.testing.assert_close(gradient, back.to(dtype), rtol=0, atol=4 * ROUNDING[dtype])


@pytest.mark.parametrize("name", ROPES)
def test_second_derivatives_equal_differences(name):
    rope = ROPES[name]
    q, _, positions = inputs(rope, torch.float64, tokens=2)
    q.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope.rotate(x, positions), (q,))
    assert torch.autograd.gradgradcheck(lambda x: rope.rotate(x, positions).square(), (q,))
    torch.func.jvp(lambda x: rope.rotate(x, positions), (q.detach(),), (q.detach(),))


@pytest.mark.parametrize("name", ["yarn", "sections"])
@pytest.mark.filterwarnings("ignore:Skipping serialization")  # torch 2.6, of its own configuration
def test_a_compiled_call_is_one_graph(name):
    rope = ROPES[name]
    torch.compiler.reset()
    compiled = torch.compile(rope.apply, fullgraph=True)
    for tokens in (5, 7, 300):
        q, k, positions = inputs(rope, torch.float32, tokens)
        for x, y in zip((q, k), compiled(q, k, positions), strict=True):
            torch.testing.assert_close(y, expected(rope, x, positions), rtol=0, atol=3e-6)


def test_a_checkpointed_layer_trains():
    rope, layer = ROPES["half"], torch.nn.Linear(16, 16)

    def block(x: torch.Tensor) -> torch.Tensor:
        return rope.rotate(layer(x), torch.arange(x.shape[1]))

    x = torch.randn(2, 5, 4, 16)
    gradients = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        layer.zero_grad()
        for _ in range(3):  # the slow path, then cached calls
            run(x).square().mean().backward()
        gradients.append(layer.weight.grad.clone())  # type: ignore[union-attr]  # set by backward
    torch.testing.assert_close(*gradients)


def test_a_vmapped_rotation_equals_a_batch():
    rope = ROPES["half"]
    q, _, positions = inputs(rope, torch.float32)
    mapped = torch.vmap(lambda x: rope.rotate(x, positions[0]))(q)
    torch.testing.assert_close(mapped, rope.rotate(q, positions[0]), rtol=0, atol=0)
