"""torch: Angles within graphs and across them, exported, and with gradients to all that is held."""

from typing import Any

import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import YaRN

torch = pytest.importorskip("torch")

ROPE = RoPE(layout="half", scaling=YaRN(4.0, 4096))


def sample(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), **options)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


class Decoder(torch.nn.Module):
    """Two layers that share their angles, and an output that is turned back."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> Any:
        angles = ROPE.at(p, like=q)
        for _ in range(2):
            q, k = angles.apply(q, k)
        return angles.unrotate(q), k


def layer_by_layer(q: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> Any:
    for _ in range(2):
        q, k = ROPE.apply(q, k, p)
    return ROPE.unrotate(q, p), k


def arguments(tokens: int) -> tuple[torch.Tensor, ...]:
    return sample(1, tokens, 4, 16), sample(1, tokens, 2, 16), torch.arange(tokens) + 70_000


def test_one_graph_of_layers_serves_all_lengths() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(Decoder(), fullgraph=True, backend=count)
    for tokens in (5, 9, 700):
        same(compiled(*arguments(tokens)), layer_by_layer(*arguments(tokens)))
    assert len(graphs) == 2  # the second with a symbol for the length


def test_angles_of_one_graph_are_used_in_another() -> None:
    torch._dynamo.reset()
    q, k, p = arguments(5)
    make = torch.compile(lambda p, q: ROPE.at(p, like=q), fullgraph=True, backend="aot_eager")
    use = torch.compile(lambda a, q, k: a.apply(q, k), fullgraph=True, backend="aot_eager")
    same(use(make(p, q), q, k), ROPE.apply(q, k, p))


@pytest.mark.parametrize("path", [None, "portable"])
def test_gradients_of_q_and_k(path: str | None) -> None:
    q, k, p = arguments(5)
    with rope_xp.use_path(path):
        made = []
        for function in (Decoder(), layer_by_layer):
            leaves = [x.clone().requires_grad_() for x in (q, k)]
            results = function(*leaves, p)
            made.append(torch.autograd.grad([x.square().sum() for x in results], leaves))
    same(*made)


@pytest.mark.parametrize("of", ["cos", "sin"])
def test_gradients_of_tables(of: str) -> None:
    x, tables = sample(5, 2, 8, dtype=torch.float64), {}
    for name, t in zip(("cos", "sin"), RoPE().cos_sin(torch.arange(5), 8), strict=True):
        tables[name] = t.double().requires_grad_(name == of)

    def turned(**given: torch.Tensor) -> torch.Tensor:
        q, k = RoPE().with_tables(**given).apply(x, x[:, :1])
        return torch.cat([q, k], 1)

    assert torch.autograd.gradcheck(lambda t: turned(**{**tables, of: t}), tables[of])


def test_devices_do_not_mix() -> None:
    x = torch.ones(5, 2, 8, device="meta")
    with pytest.raises(rope_xp.RopeError, match="q is on meta and cos on cpu; move one of them"):
        ROPE.at(torch.arange(5), like=torch.ones(8)).apply(x, x)
    assert ROPE.at([1, 2, 3], like=x).cos.device.type == "meta"
