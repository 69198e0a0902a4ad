"""What graphs and other streams read outlives the caches: by reference counts, without a GPU."""

import gc
import weakref
from types import SimpleNamespace

import pytest
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("small_heap")

from rope_xp_backends.torch import private, tables  # noqa: E402  # they need torch
from support.patched import replaced  # noqa: E402  # it needs torch


@pytest.fixture
def read(compile_by, monkeypatch):
    """Have calls on the CPU launch what notes weakly which tables it reads."""
    seen = []

    def run(_grid, tensors, _numbers):
        seen.append(tuple(weakref.ref(x) for x in tensors[4:7]))

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
@pytest.mark.parametrize("call", [forward, exhaustive(in_place), backward])
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


def test_gradients_captured_by_themselves_keep_the_tables_of_the_forward_pass(read, monkeypatch):
    with rope_xp.use_path("triton"):
        loss = RoPE(base=9_999.0).rotate(torch.ones(5, 2, 8, requires_grad=True)).sum()
        monkeypatch.setattr(private, "is_capturing", lambda _: True)
        loss.backward()
    del loss
    assert count_held(read[-1]) == 3


def test_a_graph_of_many_calls_keeps_tables_once(read, monkeypatch):
    monkeypatch.setattr(private, "is_capturing", lambda _: True)
    with rope_xp.use_path("triton"):
        for _ in range(3):
            forward(RoPE(base=9_999.0), torch.ones(5, 2, 8))
            assert len(caches.PINNED) == 4  # three digits, and frequencies
    rope_xp.clear_caches()


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


@pytest.mark.parametrize(
    ("kind", "form", "columns", "bound"),
    [
        ("llama", "halves", 8, True),
        ("gpt_oss", "pairs", 4, True),
        ("cohere", "neighbours", 8, False),
    ],
)
def test_tables_of_patched_models_are_read_where_they_lie(kind, form, columns, bound, compile_by):
    """Those of neighbours are copied, as the kernel wants columns side by side."""
    (_, ours), read = replaced(kind, form), []

    def run(_grid, tensors, _numbers):
        read.append((tensors[4].data_ptr(), tensors[5].data_ptr()))

    compile_by(lambda _: run)
    q, k = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
    with rope_xp.use_path("triton"), torch.inference_mode():
        for call in range(4):
            cos, sin = torch.rand(2, 1, 3, columns)
            ours(q, k, cos, sin)
            assert len(read) == call + 1
            assert ((cos.data_ptr(), sin.data_ptr()) == read[-1]) is bound
