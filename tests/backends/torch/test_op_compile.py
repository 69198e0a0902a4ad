"""torch's operator around kernels: torch.compile and torch.export.

The kernels are those for CPUs, and those for GPUs where triton/test_interpreted.py runs them.
"""

from collections.abc import Callable
from typing import Any

import pytest
from rope_xp_backends.torch import cpu, gpu
from support.exhaustive import exhaustive
from support.targets import KERNELS
from support.torch_op import POSITIONS, TORCH, Temperature, recording, same, sample

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core.path import PathUnavailable

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("_by_kernels")


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> Any:
        return rope_xp.apply(q, k, p, layout="half", scaling=Temperature(2.0))


def train(attention: Callable[..., Any], tokens: int, p: Any) -> Any:
    """Return results and gradients."""
    q, k = sample(2, tokens, 4, 16, grad=True), sample(2, tokens, 2, 16, grad=True)
    results = attention(q, k, p)
    return *results, *torch.autograd.grad([x.square().sum() for x in results], (q, k))


own_classes = pytest.mark.skipif(
    TORCH < (2, 12), reason="before torch 2.12 a graph makes instances of rope_xp's classes alone"
)


@own_classes
@pytest.mark.parametrize(("path", "first"), [(KERNELS, 5), exhaustive(None, 4096)])
def test_graphs_hold_the_operator_and_serve_all_lengths(path: str | None, first: int) -> None:
    torch._dynamo.reset()
    graphs: list[set[str]] = []
    with rope_xp.use_path(path):
        compiled = torch.compile(Attention(), fullgraph=True, backend=recording(graphs))
        for tokens in (first, 9, 700):
            p = torch.arange(tokens) + 70_000
            same(train(compiled, tokens, p), train(Attention(), tokens, p))
    assert len(graphs) == 4  # forward and backward, of one length and of all
    assert all("rope_xp.rotate_pair.default" in graph for graph in graphs)


@own_classes
def test_a_graph_runs_where_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Attention(), fullgraph=True, backend="aot_eager")
    expected = train(compiled, 5, POSITIONS)
    given = torch.compile(rope_xp.apply_tables, fullgraph=True, backend="aot_eager")
    expected_given = given(*(tables := (sample(2, 5, 4, 16), *RoPE().cos_sin(POSITIONS, 16))))

    def fail(*_: object, **__: object) -> None:
        raise PathUnavailable

    for kernels in (cpu.KERNELS, gpu.KERNELS):
        monkeypatch.setattr(kernels, "get", fail)
    rope_xp.clear_caches()  # of plans with kernels
    for name in (None, "portable"):
        with rope_xp.use_path(name):
            same(train(compiled, 5, POSITIONS), expected)
            same(given(*tables), expected_given)
    with pytest.raises(RopeError, match="was asked for and cannot take this call"):
        given(*tables)
