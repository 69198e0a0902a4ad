"""torch's operator around kernels of this process: memory, writing in place, torch.compile."""

import importlib
from unittest.mock import Mock

import pytest
from rope_xp_backends.torch import gpu, op
from support.cases import slow
from support.rules import Temperature
from support.targets import truth
from support.torch_op import POSITIONS, TORCH, recording, rotate, same, sample
from support.ways import decline_all

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core.path import PathUnavailable
from rope_xp._core.tables import TableKey

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("_by_kernels")


@pytest.mark.parametrize("looked_up", [True, slow(False)])
def test_calls_of_the_operator_pass_the_checks_of_torch(looked_up):
    angles = (None, None, *RoPE().cos_sin(POSITIONS, 8), None, None)
    if looked_up:
        backend = importlib.import_module("rope_xp_backends.torch").BACKEND
        digits = tuple(backend.tables(TableKey(RoPE(), 8, False, False), sample(1)))[:3]
        angles = (POSITIONS, torch.rand(POSITIONS.shape), *digits, torch.rand(4))
    how = (*angles, None, "bshd", "half", 0, False)
    q, k = sample(2, 3, 5, 8).transpose(1, 2), sample(2, 5, 3, 8)[:, :, 1:]
    weights, no_norm = (torch.ones(8), torch.ones(8)), (None, 0.0, False)
    for arguments in (
        (q, None, None, None, *how, *no_norm),
        (q, k, None, None, *how, *no_norm),
        (q, k, *weights, *how, 1e-6, 1.0, False),
    ):
        torch.library.opcheck(torch.ops.rope_xp.rotate.default, arguments)


def permuted(*axes):
    return lambda x: x.permute(axes).contiguous().permute([axes.index(i) for i in range(4)])


def strided(*shape, strides):
    return lambda x: x.as_strided(shape, strides)


VIEWS = {
    "contiguous": lambda x: x,
    "heads first": permuted(0, 2, 1, 3),
    "head_dim first": permuted(3, 1, 2, 0),
    "heads last": permuted(0, 1, 3, 2),
    "every second component": lambda x: x[..., ::2],
    "one batch for all": lambda x: x[:1].expand_as(x),
    "one head for all": lambda x: x[:, :, :1].expand_as(x),
    # Of these, torch's empty_like has another axis last in memory.
    "one head beside one token": strided(1, 1, 2, 8, strides=(16, 1, 0, 1)),
    "one head beside one batch": strided(1, 3, 2, 8, strides=(1, 8, 0, 1)),
    "one head beside both": strided(1, 1, 2, 8, strides=(1, 1, 0, 1)),
    "imaginary part": lambda x: torch.complex(x, x).conj().imag,
    "negated": torch._neg_view,
    "parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("view", VIEWS)
def test_results_have_the_strides_that_torch_gives_them(view):
    x = VIEWS[view](sample(2, 5, 3, 8))
    p, like = POSITIONS[: x.shape[1]], torch.empty_like(x)
    if x.stride(-1) != 1 or like.stride(-1) != 1:
        like = x.contiguous()
    for got in (rotate(x, p), *RoPE().apply(x, x, p)):
        same(got, truth(rotate, x.clone(memory_format=torch.contiguous_format), p))
        assert got.stride() == like.stride()
        assert not got.is_neg()


def test_results_and_inputs_can_be_resized():
    x = torch.ones(1, 2048, 8, 64)
    assert x.nbytes == 1 << 22  # from where on results are in huge pages
    for owner in (rotate(x, None), x, *RoPE().apply(x[:, :2], x[:, :2])):
        owner.resize_(1, 4096, 8, 64)


@pytest.mark.parametrize("by_entry", [True, False])
def test_writing_over_what_backward_needs_is_an_error_of_autograd(by_entry, monkeypatch):
    if not by_entry:
        decline_all(monkeypatch)
    for write in (
        lambda x: RoPE().rotate(x, out=x),
        lambda x: RoPE().apply(x.clone(), x, out=(torch.empty_like(x), x)),
    ):
        x = sample(5, 2, 8)
        y = sample(5, 2, 8, grad=True) * x
        with torch.no_grad():
            write(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("view", ["every second component", "negated"])
def test_out_that_no_kernel_writes_takes_the_portable_path(view):
    x = VIEWS[view](sample(1, 5, 2, 8))
    expected = truth(rotate, x.clone())
    with pytest.raises(RopeError, match="last axis of out is not contiguous, or holds"):
        RoPE().rotate(x, POSITIONS, out=x)
    with rope_xp.use_path(None):
        same(RoPE().rotate(x, POSITIONS, out=x), expected)


def train(rotate, tokens):
    q, k = sample(2, tokens, 4, 16, grad=True), sample(2, tokens, 2, 16, grad=True)
    results = rotate(q, k, torch.arange(tokens) + 70_000)
    return *results, *torch.autograd.grad([x.square().sum() for x in results], (q, k))


@pytest.mark.slow
@pytest.mark.skipif(
    TORCH < (2, 12), reason="before torch 2.12 a graph makes instances of rope_xp's classes alone"
)
def test_graphs_hold_the_operator_serve_all_lengths_and_run_where_kernels_fail(monkeypatch):
    graphs, rotate = [], RoPE(layout="half", scaling=Temperature(2.0)).apply
    compiled = torch.compile(rotate, fullgraph=True, backend=recording(graphs))
    for tokens in (5, 9, 700):
        expected = train(rotate, tokens)
        same(train(compiled, tokens), expected)
    assert len(graphs) == 4  # forward and backward, of one length and of all
    assert all("rope_xp.rotate.default" in graph for graph in graphs)
    monkeypatch.setitem(op.RUNS, "cpu", Mock(side_effect=PathUnavailable("not built")))
    monkeypatch.setattr(gpu.KERNELS, "get", Mock(side_effect=PathUnavailable))
    rope_xp.clear_caches()
    with rope_xp.use_path(None):
        same(train(compiled, tokens), expected)
    with pytest.raises(RopeError, match="was forced, but cannot take this call"):
        train(compiled, tokens)
