"""What users do around calls must not take them off the cached way, nor copy tables each time."""

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RoPE
from rope_xp._arguments import parse
from rope_xp._core import caches

torch = pytest.importorskip("torch")

HALF = RoPE(layout="half")


def test_a_default_device_is_no_mode_to_fear(monkeypatch: pytest.MonkeyPatch) -> None:
    x, positions = torch.ones(1, 3, 2, 16), torch.arange(3)
    expected = HALF.rotate(x, positions)
    before = torch.get_default_device()
    torch.set_default_device("cpu")
    try:
        HALF.rotate(x, positions)
        monkeypatch.setattr(parse, "rotate", lambda *_: pytest.fail("it took the slow path"))
        assert torch.equal(HALF.rotate(x, positions), expected)
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


class Wrapped(torch.Tensor):  # type: ignore[misc,name-defined]  # torch may be missing
    """A subclass as users derive them."""


def test_a_subclass_uses_the_tables_that_there_are() -> None:
    from rope_xp_backends.torch import tables

    x = torch.ones(1, 3, 2, 16).as_subclass(Wrapped)
    expected = HALF.rotate(torch.ones(1, 3, 2, 16), [1, 2, 3])
    on_device = tables.tables_on_device.__self__
    built = on_device.built
    for _ in range(3):
        got = HALF.rotate(x, [1, 2, 3])
        assert torch.equal(got.as_subclass(torch.Tensor), expected)
    assert on_device.built == built


def test_tables_on_a_cpu_are_the_memory_of_the_host() -> None:
    from rope_xp_backends.torch import tables

    from rope_xp._core.library import TableKey
    from rope_xp._rotation.tables import host_tables

    table_key = TableKey(RoPE(base=1234.5), 32, False, False)
    shared = tables.tables_on_device((table_key, torch.device("cpu")))
    assert shared.low.data_ptr() == host_tables(table_key).low.ctypes.data


def best(call: Callable[[], Any], of: int = 7) -> float:
    times = []
    for _ in range(of):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def test_a_new_rope_takes_little() -> None:
    """Less than twice the 600,000 sines and cosines of its tables; it took four times as long."""
    import numpy as np

    bases = iter(range(20_000, 30_000))
    x = torch.ones(1, 1, 2, 128)
    new = best(lambda: RoPE(base=float(next(bases))).rotate(x, [5]))
    angles = np.random.default_rng(0).random((4609, 64)) * 1e4
    assert new < 2 * best(lambda: (np.cos(angles), np.sin(angles)))


def test_a_lone_float_is_a_position_for_one_token() -> None:
    x = torch.randn(1, 1, 2, 16)
    for _ in range(3):
        for position in (5.5, torch.tensor(5.5), -0.25):
            expected = HALF.rotate(x.numpy(), float(position))
            assert (HALF.rotate(x, position).numpy() == expected).all()


def test_fractions_below_zero_in_float64() -> None:
    """Those of float32 positions too: what is right of the point is exact in float64 alone."""
    x = torch.randn(1, 4, 2, 16, dtype=torch.float64)
    positions = torch.tensor([-0.3, -1e-6, -7.123, 5.7])
    expected = HALF.rotate(x.numpy(), positions.numpy())
    for path in (None, "portable"):
        with rope_xp.use_path(path):
            for _ in range(2):
                assert (HALF.rotate(x, positions).numpy() == expected).all()


class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]  # torch may be missing
    def forward(self, q: Any, k: Any, positions: Any) -> Any:
        for _ in range(8):
            q, k = HALF.apply(q, k, positions)
        return q, k


@pytest.mark.parametrize("path", [exhaustive(None), "llvm"])
def test_a_graph_of_many_layers_holds_tables_once(path: str | None) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    q, k = torch.randn(1, 5, 4, 16), torch.randn(1, 5, 2, 16)
    with rope_xp.use_path(path):
        compiled = torch.compile(Layers(), fullgraph=True, backend=backend)
        got = compiled(q, k, torch.arange(5))
    for g, e in zip(got, Layers()(q, k, torch.arange(5)), strict=True):
        torch.testing.assert_close(g, e)
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
    assert caches.cached_bytes() == 0
