"""What graphs and other streams read outlives the caches: by reference counts, without a GPU."""

import gc
import weakref
from types import SimpleNamespace

import pytest
from support.cases import slow

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rope_xp_backends.torch import private, tables  # noqa: E402  # they need torch

AT = torch.arange(5)
CALLS = {
    "forward": lambda rope, x: rope.rotate(x, AT),
    "in place": lambda rope, x: rope.rotate(x, AT, out=x),
    "backward": lambda rope, x: rope.rotate(x.clone().requires_grad_(), AT).sum().backward(),
}


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["forward", slow("in place"), "backward"])
def test_graphs_keep_the_tables_that_they_read(name, again, compile_by, monkeypatch):
    """Also those of a call that was cached before, which tells nobody else of its tables."""
    read, build = [], tables.tables_on_device

    def on_device(key):
        tables.extend_lifetime(digit_tables := build(key))  # as on a GPU
        return digit_tables

    def count_held():
        rope_xp.clear_caches()
        gc.collect()
        return sum(table() is not None for table in read[-1])

    compile_by(lambda _: lambda _, x, __: read.append([weakref.ref(t) for t in x[6:9]]))
    monkeypatch.setattr(caches, "PINNED", {})
    monkeypatch.setattr(tables, "tables_on_device", on_device)
    rope, x, call = RoPE(base=9_999.0), torch.ones(5, 2, 8), CALLS[name]
    with rope_xp.use_path("triton"):
        for _ in range(2 * again):
            call(rope, x)
        assert not caches.PINNED
        with monkeypatch.context() as patch:
            patch.setattr(private, "is_capturing", lambda _: True)
            call(rope, x)
        assert count_held() == 3
        call(rope, x)
        assert count_held() == 0  # nobody else keeps them


def test_each_stream_that_reads_tables_is_told_to_the_allocator_once(monkeypatch):
    """Which then lends their memory to nobody before that stream is done."""
    monkeypatch.setattr(private, "is_capturing", lambda _: False)
    readers = [[] for _ in range(8)]
    device = torch.device("cuda", 0)
    rows = [SimpleNamespace(device=device, record_stream=x.append) for x in readers]
    digit_tables = [tables.DigitTables(*part, None) for part in (rows[:4], rows[4:])]
    for number in (1, 2, 1, 2):
        monkeypatch.setattr(private, "current_stream", lambda _, n=number: n)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, n=number: n)
        for part in digit_tables:
            tables.extend_lifetime(part)
    assert readers == [[1, 2]] * 8
