"""Training: what autograd saves is the same however a call runs, and is not the caller's memory."""

from functools import partial

import pytest

from rope_xp import RoPE

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint")

HALF = RoPE(layout="half")
LENGTHS = (16, 16, 24)


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch may be missing
    """Attention with one head, rotated by positions or by angles."""

    def __init__(self, by="positions"):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(32, 32) for _ in range(3))
        self.by = by

    def forward(self, x, positions):
        q, k, v = (m(x).unflatten(-1, (2, 16)) for m in (self.q, self.k, self.v))
        if self.by == "angles":
            q, k = HALF.at(positions, like=q).apply(q, k)
        elif self.by == "rotate":
            q, k = HALF.rotate(q, positions), HALF.rotate(k, positions)
        else:
            q, k = HALF.apply(q, k, positions)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return x + torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(-2)


def run(layers, x, positions, wrap):
    for layer in layers:
        layer.zero_grad()
    y = x
    for layer in layers:
        y = layer(y, positions) if wrap is None else wrap(layer, y, positions)
    y.square().mean().backward()
    return [p.grad.clone() for layer in layers for p in layer.parameters()]


def positions_of(kind, tokens):
    whole = torch.arange(tokens) * 31
    return {
        "int64": whole, "int32": whole.int(), "fractions": whole + 0.25,
        "list": list(range(5, 5 + tokens)), "none": None,
    }[kind]  # fmt: skip


def save_products(_context, op, *_, **__):
    policy = checkpoint.CheckpointPolicy
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return policy.MUST_SAVE if saved else policy.PREFER_RECOMPUTE


SELECTIVE = partial(checkpoint.create_selective_checkpoint_contexts, save_products)
WRAPS = {
    "not reentrant": partial(checkpoint.checkpoint, use_reentrant=False),
    "reentrant": partial(checkpoint.checkpoint, use_reentrant=True),
    "selective": partial(checkpoint.checkpoint, use_reentrant=False, context_fn=SELECTIVE),
}


@pytest.mark.parametrize("positions", ["int64", "int32", "fractions", "list", "none"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_gradients_under_checkpointing_equal_plain_ones(wrap, positions):
    """A first call of a signature and its recomputation save the same tensors."""
    layers = [Layer(by) for by in ("positions", "rotate", "positions", "angles")]
    if positions == "none":
        layers.pop()
    for tokens in LENGTHS:
        x = torch.randn(2, tokens, 32, requires_grad=True)
        where = positions_of(positions, tokens)
        got = run(layers, x, where, WRAPS[wrap])
        torch.testing.assert_close(got, run(layers, x, where, None))


def test_gradients_of_offloaded_tensors_equal_the_inverse():
    x = torch.randn(1, 21, 2, 16, requires_grad=True)
    expected = HALF.unrotate(torch.ones_like(x), torch.arange(21))
    for _ in range(3):
        x.grad = None
        with torch.autograd.graph.save_on_cpu():
            y = HALF.rotate(x, torch.arange(21))
        y.sum().backward()
        assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", ["int64", "int32", "fractions"])
def test_positions_written_over_before_backward_do_not_matter(kind, inference):
    """As pipelines and captured loops do, whose buffers are static."""
    x = torch.randn(1, 9, 2, 16, requires_grad=True)
    with torch.inference_mode(inference):
        positions = positions_of(kind, 9)
    for _ in range(3):
        expected = HALF.unrotate(torch.ones_like(x), positions.clone())
        x.grad = None
        y = HALF.rotate(x, positions)
        with torch.inference_mode(inference):
            positions.add_(1)
        y.sum().backward()
        assert torch.equal(x.grad, expected)


@pytest.mark.slow
def test_compiled_layers_under_checkpointing_have_plain_gradients():
    layers = [Layer() for _ in range(2)]
    options = {"fullgraph": True, "dynamic": True, "backend": "aot_eager"}
    compiled = [torch.compile(layer, **options) for layer in layers]
    for tokens in (16, 24):
        x = torch.randn(2, tokens, 32, requires_grad=True)
        expected = run(layers, x, torch.arange(tokens), None)
        got = run(compiled, x, torch.arange(tokens), WRAPS["not reentrant"])
        torch.testing.assert_close(got, expected)


def test_second_derivatives_of_cached_calls_equal_differences():
    x = torch.randn(1, 3, 1, 8, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        assert torch.autograd.gradgradcheck(lambda x: HALF.rotate(x, [7, 8, 9.5]) ** 2, (x,))
