"""Graphs of many layers copy no tables, and calls need no private name of torch."""

import gc
import inspect
import itertools
import re
import weakref

import numpy as np
import pytest
from support.torch_op import noting
from support.ways import decline_all

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches

torch = pytest.importorskip("torch")

from rope_xp_backends.torch import private  # noqa: E402  # they need torch

HALF = RoPE(layout="half")


def layers(q, k, positions):
    for _ in range(8):
        q, k = HALF.apply(q, k, positions)
    return q, k


@pytest.mark.slow
@pytest.mark.usefixtures("small_heap")
def test_a_graph_of_many_layers_holds_tables_once_and_frees_them():
    graphs = []
    q, k = torch.randn(1, 5, 4, 16), torch.randn(1, 5, 2, 16)
    with rope_xp.use_path("native"):
        compiled = torch.compile(layers, fullgraph=True, backend=noting(graphs))
        got = compiled(q, k, torch.arange(5))
    torch.testing.assert_close(got, layers(q, k, torch.arange(5)))
    (graph,) = graphs
    held = [x for x in (*graph.parameters(), *graph.buffers()) if x.numel() > 1000]
    held += [x for x in vars(graph).values() if isinstance(x, torch.Tensor) and x.numel() > 1000]
    assert 0 < len({x.data_ptr() for x in held}) <= 3
    tables = [weakref.ref(x) for x in held]
    del graph, compiled, held, got
    graphs.clear()
    torch._dynamo.reset()
    rope_xp.clear_caches()
    gc.collect()
    assert not any(table() is not None for table in tables)
    assert not caches._ORDER


NAMES = re.findall(r"^(\w+)(?::.*)? = _resolve\(", inspect.getsource(private), re.MULTILINE)
BASES = itertools.count(30_000)  # of no rope whose tables are cached


@pytest.mark.parametrize(
    "missing", [[name] for name in NAMES] + [NAMES], ids=lambda names: names[0]
)
def test_calls_and_derivatives_are_right_where_torch_lacks_a_private_name(missing, monkeypatch):
    for name in missing:
        monkeypatch.setattr(private, name, None)
    decline_all(monkeypatch)  # the entry is told of such names at import
    rope = RoPE(base=float(next(BASES)))
    x = torch.randn(2, 3, 2, 8)
    turned = torch.from_numpy(rope.rotate(x.numpy()))
    back = torch.from_numpy(rope.unrotate(np.ones((2, 3, 2, 8), np.float32)))
    assert torch.equal(torch.func.grad(lambda x: rope.rotate(x).sum())(x), back)
    assert torch.equal(torch.func.vmap(rope.rotate)(x), turned)
    assert torch.equal(torch.func.jvp(rope.rotate, (x,), (x,))[1], turned)
    for _ in range(2):
        assert torch.equal(rope.rotate(x), turned)
        leaf = x.clone().requires_grad_()
        rope.rotate(leaf).sum().backward()
        assert torch.equal(leaf.grad, back)
    if set(missing) & {"_guard_scalar", "_known_true"}:
        compiled = torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), turned)
