"""torch's operator around kernels: memory, bits, writing in place.

The kernels are those for CPUs, and those for GPUs where triton/test_interpreted.py runs them.
"""

import importlib
from collections.abc import Callable

import pytest
from support.exhaustive import exhaustive
from support.targets import truth
from support.torch_op import POSITIONS, rotate, same, sample

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core.library import TableKey

torch = pytest.importorskip("torch")

ops = torch.ops.rope_xp
pytestmark = pytest.mark.usefixtures("_by_kernels")


@pytest.mark.parametrize("looked_up", [True, exhaustive(False)])
def test_torch_finds_no_fault_with_the_operators(looked_up: bool) -> None:
    angles = (None, None, *RoPE().cos_sin(POSITIONS, 8), None, None)
    if looked_up:
        backend = importlib.import_module("rope_xp_backends.torch").BACKEND
        digits = tuple(backend.tables(TableKey(RoPE(), 8, False, False), sample(1)))[:3]
        angles = (POSITIONS, torch.rand(POSITIONS.shape), *digits, torch.rand(4))
    how = (*angles, None, "bshd", "half", 0, False)
    x, heads_first = sample(2, 5, 3, 8), sample(2, 3, 5, 8).transpose(1, 2)
    for q, k in ((x, x[:, :, 1:]), (heads_first, x), (x.bfloat16(), heads_first.bfloat16())):
        torch.library.opcheck(ops.rotate.default, (q, *how))
        torch.library.opcheck(ops.rotate_pair.default, (q, k, *how))
        out = [torch.empty_like(q), torch.empty_like(k)]
        torch.library.opcheck(ops.rotate_out.default, (out, [q, k], *how))


@pytest.mark.parametrize("strides", [(16, 1, 0, 1), (1, 8, 0, 1), (1, 1, 0, 1)], ids=str)
def test_heads_that_are_one_beside_an_axis_of_length_1(strides: tuple[int, ...]) -> None:
    """Of such tensors torch's empty_like has another axis last in memory."""
    for tokens in (1, 3):
        x = sample(64).as_strided((1, tokens, 2, 8), strides)
        p = POSITIONS[:tokens]
        assert rotate(x, p).stride(-1) == 1
        same(rotate(x, p), truth(rotate, x.contiguous(), p))
        for got in RoPE().apply(x, x, p):
            same(got, truth(rotate, x.contiguous(), p))


def permuted(*axes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.permute(axes).contiguous().permute([axes.index(i) for i in range(4)])


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "heads first": permuted(0, 2, 1, 3),
    "head_dim first": permuted(3, 1, 2, 0),
    "heads last": permuted(0, 1, 3, 2),
    "every second component": lambda x: x[..., ::2],
    "one batch for all": lambda x: x[:1].expand_as(x),
    "one token for all": lambda x: x[:, :1].expand_as(x),
    "one head for all": lambda x: x[:, :, :1].expand_as(x),
    "imaginary part": lambda x: torch.complex(x, x).conj().imag,
    "negated": torch._neg_view,
    "parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("view", VIEWS)
def test_results_lie_in_memory_as_torch_has_it(view: str) -> None:
    x = VIEWS[view](sample(2, 5, 3, 8))
    for got in (rotate(x), *RoPE().apply(x, x, POSITIONS)):
        same(got, truth(rotate, x.clone(memory_format=torch.contiguous_format)))
        like = torch.empty_like(x) if x.stride(-1) == 1 else x.contiguous()
        assert got.stride() == like.stride()
        assert not got.is_neg()


def test_all_memory_can_still_be_resized() -> None:
    x = torch.ones(1, 2048, 8, 64)
    assert x.nbytes == 1 << 22  # from where on results are in huge pages
    for owner in (rotate(x, None), x, *RoPE().apply(x[:, :2], x[:, :2])):
        owner.resize_(1, 4096, 8, 64)


def test_writing_over_what_backward_needs_is_noticed() -> None:
    for write in (
        lambda x: RoPE().rotate(x, out=x),
        lambda x: RoPE().apply(x.clone(), x, out=(torch.empty_like(x), x)),
    ):
        x, w = sample(5, 2, 8), sample(5, 2, 8, grad=True)
        y = w * x
        with torch.no_grad():
            write(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("view", ["every second component", "negated"])
def test_out_that_no_kernel_writes(view: str) -> None:
    x = VIEWS[view](sample(1, 5, 2, 8))
    expected = truth(rotate, x.clone())
    with pytest.raises(RopeError, match="last axis of out is not contiguous, or holds"):
        RoPE().rotate(x, POSITIONS, out=x)
    with rope_xp.use_path(None):
        same(RoPE().rotate(x, POSITIONS, out=x), expected)
