"""What every supported version of torch does; see .ci/versions."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support import layers
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.slow  # the short suite has tests/backends/torch
ROPES = [layers.ROPES[name] for name in ("half", "yarn", "sections")]
every_rope = pytest.mark.parametrize("rope", ROPES)
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2.0**-6, torch.float64: 1e-13}
"""Half an ulp of numbers below 4, but for angles of float32."""


def inputs(rope, dtype=torch.float32, tokens=5):
    q, k, positions = layers.inputs("torch", rope, tokens)
    return q.to(dtype), k.to(dtype), positions


def expected(rope, x, positions):
    rotated = rope.rotate(x.detach().double().numpy(), positions.numpy())
    return torch.from_numpy(np.ascontiguousarray(rotated)).to(x.dtype)


@every_rope
@pytest.mark.parametrize("dtype", ROUNDING)
def test_results_and_gradients_equal_float64(rope, dtype):
    q, k, positions = inputs(rope, dtype)
    for x, y in zip((q, k), rope.apply(q, k, positions), strict=True):
        torch.testing.assert_close(y, expected(rope, x, positions), rtol=0, atol=ROUNDING[dtype])
    q.requires_grad_()
    (gradient,) = torch.autograd.grad(rope.rotate(q, positions).sum(), q)
    back = rope.unrotate(torch.ones_like(q), positions) * rope.attention_factor**2
    torch.testing.assert_close(gradient, back.to(dtype), rtol=0, atol=4 * ROUNDING[dtype])


@every_rope
def test_derivatives_and_transforms_equal_differences_and_plain_calls(rope):
    q, _, positions = inputs(rope, torch.float64, tokens=2)
    q.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: rope.rotate(x, positions), (q,))
    assert torch.autograd.gradgradcheck(lambda x: rope.rotate(x, positions).square(), (q,))
    x, one = q.detach(), positions[..., :1, :]
    _, tangent = torch.func.jvp(lambda x: rope.rotate(x, one), (x,), (x,))
    mapped = torch.vmap(lambda x: rope.rotate(x, one[..., 0, :]))(x)
    torch.testing.assert_close(tangent, mapped, rtol=0, atol=1e-13)
    torch.testing.assert_close(mapped, rope.rotate(x, one), rtol=0, atol=1e-13)


@every_rope
@pytest.mark.filterwarnings("ignore:Skipping serialization")  # torch 2.6, of its own configuration
def test_a_compiled_call_is_one_graph(rope):
    torch.compiler.reset()
    compiled = torch.compile(rope.apply, fullgraph=True)
    for tokens in (5, 7, 300):
        q, k, positions = inputs(rope, tokens=tokens)
        for x, y in zip((q, k), compiled(q, k, positions), strict=True):
            torch.testing.assert_close(y, expected(rope, x, positions), rtol=0, atol=3e-6)


def test_a_checkpointed_layer_trains():
    rope, layer, gradients = layers.ROPES["half"], torch.nn.Linear(16, 16), []
    x = torch.randn(2, 5, 4, 16)

    def block(x):
        return rope.rotate(layer(x), torch.arange(x.shape[1]))

    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        layer.zero_grad()
        run(x).square().mean().backward()
        gradients.append(layer.weight.grad.clone())
    torch.testing.assert_close(*gradients)
