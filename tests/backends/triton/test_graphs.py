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
pytestmark = pytest.mark.usefixtures("small_heap")

from rope_xp_backends.torch import private, tables  # noqa: E402  # they need torch


@pytest.fixture
def read(compile_by, monkeypatch):
    """Have calls on the CPU launch what notes weakly which tables it reads."""
    seen = []

    def run(_grid, tensors, _numbers):
        seen.append(tuple(weakref.ref(x) for x in tensors[6:9]))

    compile_by(lambda _: run)
    monkeypatch.setattr(caches, "PINNED", {})
    build = tables.tables_on_device

    def on_device(key):
        digit_tables = build(key)
        tables.extend_lifetime(digit_tables)  # as on a GPU
        return digit_tables

    monkeypatch.setattr(tables, "tables_on_device", on_device)
    return seen


def count_held(read):
    rope_xp.clear_caches()
    gc.collect()
    return sum(table() is not None for table in read)


def forward(rope, x):
    rope.rotate(x, torch.arange(5))


def in_place(rope, x):
    rope.rotate(x, torch.arange(5), out=x)


def backward(rope, x):
    rope.rotate(x.clone().requires_grad_(), torch.arange(5)).sum().backward()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("call", [forward, slow(in_place), backward])
def test_graphs_keep_the_tables_that_they_read(call, again, read, monkeypatch):
    """Also those of a call that was cached before, which tells nobody else of its tables."""
    rope, x = RoPE(base=9_999.0), torch.ones(5, 2, 8)
    with rope_xp.use_path("triton"):
        if again:
            call(rope, x)
            call(rope, x)
            assert not caches.PINNED
        monkeypatch.setattr(private, "is_capturing", lambda _: True)
        before = len(read)
        call(rope, x)
        assert len(read) > before
        monkeypatch.setattr(private, "is_capturing", lambda _: False)
        assert count_held(read[-1]) == 3
        call(rope, x)
        assert count_held(read[-1]) == 0  # nobody else keeps them


def test_each_stream_that_reads_tables_is_told_to_the_allocator_once(monkeypatch):
    """Which then lends their memory to nobody before that stream is done."""
    stream = [1]
    monkeypatch.setattr(private, "is_capturing", lambda _: False)
    monkeypatch.setattr(private, "current_stream", lambda _: stream[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream[0])
    readers = [[] for _ in range(8)]
    device = torch.device("cuda", 0)
    rows = [SimpleNamespace(device=device, record_stream=x.append) for x in readers]
    digit_tables = [tables.DigitTables(*part, None) for part in (rows[:4], rows[4:])]
    for number in (1, 2, 1, 2):
        stream[0] = number
        for part in digit_tables:
            tables.extend_lifetime(part)
    assert readers == [[1, 2]] * 8
