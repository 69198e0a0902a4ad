"""What users and versions of torch do around calls slows none of them, and copies no tables."""

import gc
import importlib.util
import inspect
import itertools
import re
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from support.exhaustive import exhaustive
from support.torch_op import noting

import rope_xp
from rope_xp import RoPE
from rope_xp._arguments import parse
from rope_xp._core import caches
from rope_xp._dispatch import call_cache

torch = pytest.importorskip("torch")

from rope_xp_backends.torch import op_args, private, tables  # noqa: E402  # they need torch

HALF = RoPE(layout="half")


def test_calls_under_a_default_device_stay_cached(monkeypatch):
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


def test_tensors_of_a_subclass_use_the_tables_of_others():
    x = torch.ones(1, 3, 2, 16).as_subclass(Wrapped)
    expected = HALF.rotate(torch.ones(1, 3, 2, 16), [1, 2, 3])
    on_device = tables.tables_on_device.__self__
    built = on_device.built
    for _ in range(3):
        got = HALF.rotate(x, [1, 2, 3])
        assert torch.equal(got.as_subclass(torch.Tensor), expected)
    assert on_device.built == built


def test_a_lone_float_is_a_position_for_one_token():
    x = torch.randn(1, 1, 2, 16)
    for _ in range(3):
        for position in (5.5, torch.tensor(5.5), -0.25):
            expected = HALF.rotate(x.numpy(), float(position))
            assert (HALF.rotate(x, position).numpy() == expected).all()


def test_fractions_below_zero_in_float64_have_the_bits_of_numpy():
    """Those of float32 positions too: what is right of the point is exact in float64 alone."""
    x = torch.randn(1, 4, 2, 16, dtype=torch.float64)
    positions = torch.tensor([-0.3, -1e-6, -7.123, 5.7])
    expected = HALF.rotate(x.numpy(), positions.numpy())
    for path in (None, "portable"):
        with rope_xp.use_path(path):
            for _ in range(2):
                assert (HALF.rotate(x, positions).numpy() == expected).all()


def layers(q, k, positions):
    for _ in range(8):
        q, k = HALF.apply(q, k, positions)
    return q, k


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("path", [exhaustive(None), "llvm"])
def test_a_graph_of_many_layers_holds_tables_once_and_frees_them(path):
    graphs = []
    q, k = torch.randn(1, 5, 4, 16), torch.randn(1, 5, 2, 16)
    with rope_xp.use_path(path):
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


@pytest.fixture
def _no_cached_calls():
    call_cache.CALLS.cache_clear()
    yield
    call_cache.CALLS.cache_clear()


@pytest.mark.usefixtures("_no_cached_calls")
@pytest.mark.parametrize(
    "missing", [[name] for name in NAMES] + [NAMES], ids=lambda names: names[0]
)
def test_calls_and_derivatives_are_right_where_torch_lacks_a_private_name(missing, monkeypatch):
    for name in missing:
        monkeypatch.setattr(private, name, None)
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


def is_advised(result):
    """Return whether the system was asked for huge pages in the middle of a tensor."""
    middle, inside = result.data_ptr() + result.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name:
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= middle < end
        elif inside and name == "VmFlags:":
            return "hg" in rest.split()
    raise AssertionError("no mapping has the tensor")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such advice")
def test_results_lie_in_huge_pages_unless_the_environment_turns_them_off(monkeypatch):
    large = torch.empty(1 << 23)
    result = op_args.allocate_result(large).zero_()
    if not is_advised(result):
        pytest.skip("this kernel of Linux has no huge pages")
    monkeypatch.setenv("ROPE_XP_HUGE_PAGES", "0")
    spec = importlib.util.spec_from_file_location(f"{op_args.__name__}_off", op_args.__file__)
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert not is_advised(without.allocate_result(torch.empty(1 << 24)).zero_())
