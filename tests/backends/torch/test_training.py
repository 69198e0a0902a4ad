"""Training: what autograd saves is the same however a call runs, and is not the caller's memory."""

from functools import partial

import pytest
from support.cases import slow
from support.ways import decline_all

from rope_xp import QKNorm, RoPE

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint")

HALF = RoPE(layout="half")
CALLS = {
    "apply": HALF.apply,
    "rotate": lambda q, k, p: (HALF.rotate(q, p), HALF.rotate(k, p)),
    "angles": lambda q, k, p: HALF.at(p, like=q).apply(q, k),
    "k alone": lambda q, k, p: HALF.apply(q.detach(), k, p),
    "positions of k": lambda q, k, p: HALF.apply(q, k, p, k_positions=p),
}
POSITIONS = {
    "int64": lambda n: torch.arange(n) * 31,
    "int32": lambda n: torch.arange(n).int() * 31,
    "fractions": lambda n: torch.arange(n) * 31 + 0.25,
    "list": lambda n: list(range(5, 5 + n)),
    "none": lambda n: None,
}


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch may be missing
    def __init__(self, call="apply"):
        super().__init__()
        self.q, self.k = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.weight, self.call = torch.nn.Parameter(torch.linspace(0.5, 2.0, 16)), call

    def forward(self, x, positions):
        q, k = (m(x).unflatten(-1, (2, 16)) for m in (self.q, self.k))
        if self.call == "norm":
            q, k = HALF.apply(q, k, positions, norm=QKNorm(self.weight, self.weight))
        else:
            q, k = CALLS[self.call](q, k, positions)
        return x + (q * k.flip(1)).flatten(-2)


def train(layers, x, positions, wrap=lambda layer, *arrays: layer(*arrays)):
    for layer in layers:
        layer.zero_grad()
    y = x
    for layer in layers:
        y = wrap(layer, y, positions)
    y.square().mean().backward()
    return [p.grad.clone() for layer in layers for p in layer.parameters() if p.grad is not None]


def save_products(_context, op, *_, **__):
    policy = checkpoint.CheckpointPolicy
    saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return policy.MUST_SAVE if saved else policy.PREFER_RECOMPUTE


def offload(layer, *arrays):
    with torch.autograd.graph.save_on_cpu():
        return layer(*arrays)


SELECTIVE = partial(checkpoint.create_selective_checkpoint_contexts, save_products)
RECOMPUTE = partial(checkpoint.checkpoint, use_reentrant=False)
WRAPS = {
    "not reentrant": RECOMPUTE,
    "reentrant": partial(checkpoint.checkpoint, use_reentrant=True),
    "selective": partial(RECOMPUTE, context_fn=SELECTIVE),
    "offloaded": offload,
}


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_gradients_under_checkpointing_and_offloading_equal_plain_ones(wrap, kind):
    """A first call of a signature and its recomputation save the same tensors."""
    layers = [Layer(call) for call in (*CALLS, "norm") if (call, kind) != ("angles", "none")]
    assert len(train([Layer("norm")], torch.randn(1, 3, 32), None)) == 5  # of the weight too
    for tokens in (16, 16, 24):
        arrays = torch.randn(2, tokens, 32, requires_grad=True), POSITIONS[kind](tokens)
        torch.testing.assert_close(train(layers, *arrays, WRAPS[wrap]), train(layers, *arrays))


@pytest.mark.parametrize("by_entry", [True, False])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", ["int64", "int32", "fractions"])
def test_positions_written_over_before_backward_do_not_matter(
    kind, inference, by_entry, monkeypatch
):
    """As pipelines and captured loops do, whose buffers are static."""
    if not by_entry:
        decline_all(monkeypatch)
    x = torch.randn(1, 9, 2, 16, requires_grad=True)
    with torch.inference_mode(inference):
        positions = POSITIONS[kind](9)
    expected = HALF.unrotate(torch.ones_like(x), positions.clone())
    y = HALF.rotate(x, positions)
    with torch.inference_mode(inference):
        positions.add_(1)
    y.sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize(("call", "tokens"), [slow("apply", 24), slow("norm", 1024)])
def test_gradients_of_compiled_layers_under_checkpointing_equal_plain_ones(call, tokens):
    """A graph has the operator for many tokens, and plain operations for few."""
    layers = [Layer(call) for _ in range(2)]
    options = {"fullgraph": True, "dynamic": True, "backend": "aot_eager"}
    torch._dynamo.reset()
    compiled = [torch.compile(layer, **options) for layer in layers]
    for n in (16, tokens):
        arrays = torch.randn(2, n, 32, requires_grad=True), torch.arange(n)
        expected = train(layers, *arrays)
        got = train(compiled, *arrays, RECOMPUTE)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
