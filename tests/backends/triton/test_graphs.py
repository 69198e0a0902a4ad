"""What graphs and other streams read outlives the caches, without a GPU: by counts of references.

A stand-in for kernels is launched, and torch told that a graph is captured. What a GPU does with
graphs is in test_gpu.py.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp._dispatch.kernels import Kernels

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rope_xp_backends.torch import gpu, op, private, tables  # noqa: E402  # they need torch


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Have calls on the CPU launch what notes weakly which tables it reads."""
    seen: list[tuple[Any, ...]] = []

    def run(_grid: object, tensors: tuple[torch.Tensor, ...], _numbers: object) -> None:
        seen.append(tuple(weakref.ref(x) for x in tensors[4:7]))

    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})
    monkeypatch.setattr(gpu, "KERNELS", Kernels("triton", lambda: lambda _: run))
    monkeypatch.setitem(op.RUNS, "cpu", gpu.rotate_on_gpu)
    monkeypatch.setattr(caches, "PINNED", {})
    own = tables.tables_on_device

    def on_device(key: Any) -> Any:
        made = own(key)
        tables.extend_lifetime(made)  # as on a GPU
        return made

    monkeypatch.setattr(tables, "tables_on_device", on_device)
    return seen


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """Have collections pass over what was imported, of which each would take half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def forget() -> None:
    rope_xp.clear_caches()
    gc.collect()


def forward(rope: RoPE, x: torch.Tensor) -> None:
    rope.rotate(x, torch.arange(5))


def in_place(rope: RoPE, x: torch.Tensor) -> None:
    rope.rotate(x, torch.arange(5), out=x)


def backward(rope: RoPE, x: torch.Tensor) -> None:
    rope.rotate(x.clone().requires_grad_(), torch.arange(5)).sum().backward()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("call", [forward, exhaustive(in_place), backward])
def test_graphs_keep_the_tables_that_they_read(
    call: Callable[..., None],
    again: bool,
    read: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        captured = read[-1]
        forget()
        assert all(table() is not None for table in captured)
        call(rope, x)
        uncaptured = read[-1]
        forget()
        assert not any(table() is not None for table in uncaptured)  # nobody else keeps them


def test_a_gradient_that_is_captured_by_itself_keeps_its_tables(
    read: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from what the forward pass saved, and through no cache."""
    with rope_xp.use_path("triton"):
        loss = RoPE(base=9_999.0).rotate(torch.ones(5, 2, 8, requires_grad=True)).sum()
        monkeypatch.setattr(private, "is_capturing", lambda _: True)
        loss.backward()
    del loss
    forget()
    assert all(table() is not None for table in read[-1])


def test_a_graph_of_many_calls_keeps_tables_once(
    read: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "is_capturing", lambda _: True)
    with rope_xp.use_path("triton"):
        for _ in range(3):
            forward(RoPE(base=9_999.0), torch.ones(5, 2, 8))
            held = len(caches.PINNED)
            assert held == 4  # three digits, and frequencies
    forget()


class Table:
    """As far as it is asked."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.read_on: list[int] = []

    def record_stream(self, stream: int) -> None:
        self.read_on.append(stream)


def test_each_stream_that_reads_tables_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator then lends their memory to nobody before that stream is done."""
    stream = [1]
    monkeypatch.setattr(private, "is_capturing", lambda _: False)
    monkeypatch.setattr(private, "current_stream", lambda _: stream[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream[0])
    made = [tables.DigitTables(*(Table() for _ in range(4)), None) for _ in range(2)]  # type: ignore[arg-type]  # as far as they are asked
    for number in (1, 2, 1, 2):
        stream[0] = number
        for each in made:
            tables.extend_lifetime(each)
    assert [table.read_on for each in made for table in tuple(each)[:4]] == [[1, 2]] * 8


@pytest.mark.parametrize("capturing", [False, True])
def test_a_second_backward_makes_no_plan(
    capturing: bool, read: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward look their launches up, by positions and by tables of the caller."""
    given = RoPE().with_tables(*RoPE().cos_sin(torch.arange(5), 8))

    def train() -> None:
        backward(RoPE(base=9_999.0), torch.ones(5, 2, 8))
        given.rotate(torch.ones(5, 2, 8, requires_grad=True)).sum().backward()

    with rope_xp.use_path("triton"):
        train()
        train()
        monkeypatch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("it made a plan"))
        monkeypatch.setattr(private, "is_capturing", lambda _: capturing)
        read.clear()
        train()
    assert len(read) == 4
