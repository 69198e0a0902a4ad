"""torch's operator around kernels: derivatives, transforms, compilers, memory.

The kernels are those for CPUs; in the process that tests/test_triton.py starts, those for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rope_xp_backends.cpu import compiled as _compiled
from rope_xp_backends.cpu import launch
from rope_xp_backends.torch import gpu
from targets import INTERPRETED, numpy_dtype, truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._contract.path import Unavailable

torch = pytest.importorskip("torch")
KERNELS = "triton" if INTERPRETED else "numba"
pytest.importorskip(KERNELS)

LAYOUTS = ("interleaved", "half", "interleaved_to_half")
POSITIONS = torch.tensor([0, 70_000, 1_000_000, -3, (1 << 31) - 1])
# tests/test_triton_kernel.py has bfloat16 of its own, as the interpreter does not round.
HALVES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]
ops = torch.ops.rope_xp


@pytest.fixture(autouse=True)
def _by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask for kernels by name. Calls that choose for themselves take them however small."""
    monkeypatch.setattr(launch, "BYTES_TO_COMPILE_FOR", 0)
    with rope_xp.use_backend(KERNELS):
        yield


def sample(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return made.requires_grad_(grad)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def rotate(x: torch.Tensor, positions: Any = POSITIONS) -> torch.Tensor:
    return RoPE().rotate(x, positions)


def digit_tables(head_dim: int) -> tuple[torch.Tensor, ...]:
    from rope_xp_backends.torch import BACKEND

    return BACKEND.tables(RoPE(), head_dim, False, False, sample(1))[0][:3]


class Temperature(rope_xp.scaling.Linear):
    """A rule whose factor is part of the derivative."""

    attention_factor = 1.25


@pytest.mark.parametrize("looked_up", [True, False])
def test_torch_finds_no_fault_with_the_operators(looked_up: bool) -> None:
    how = (None, *RoPE().cos_sin(POSITIONS, 8), None)
    how = (*((POSITIONS, *digit_tables(8)) if looked_up else how), None, "bshd", "half", 0, False)
    x, heads_first = sample(2, 5, 3, 8), sample(2, 3, 5, 8).transpose(1, 2)
    for q, k in ((x, x[:, :, 1:]), (heads_first, x), (x.bfloat16(), heads_first.bfloat16())):
        torch.library.opcheck(ops.rotate.default, (q, *how))
        torch.library.opcheck(ops.rotate_pair.default, (q, k, *how))
        out = [torch.empty_like(q), torch.empty_like(k)]
        torch.library.opcheck(ops.rotate_out.default, (out, [q, k], *how))


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
        assert (
            got.stride() == (torch.empty_like(x) if x.stride(-1) == 1 else x.contiguous()).stride()
        )
        assert not got.is_neg()


def test_all_memory_can_still_be_resized() -> None:
    x = torch.ones(1, 2048, 8, 64)
    assert x.nbytes == 1 << 22  # from where on results are in huge pages
    for owner in (rotate(x, None), x, *RoPE().apply(x[:, :2], x[:, :2])):
        owner.resize_(1, 4096, 8, 64)


@pytest.mark.parametrize("dtype", HALVES)
def test_bits_are_numpys(dtype: torch.dtype) -> None:
    x = sample(2, 5, 3, 16, dtype=dtype)
    name = numpy_dtype(str(dtype).removeprefix("torch."))
    x_numpy = x.view(torch.uint16).numpy().view(name)
    expected = truth(RoPE().rotate, x_numpy, POSITIONS.numpy())
    got = rotate(x).view(torch.uint16).numpy()
    np.testing.assert_array_equal(got, expected.view(np.uint16))


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


def test_in_place_under_inference_mode() -> None:
    x, expected = sample(5, 2, 8), rotate(sample(5, 2, 8))
    with torch.inference_mode():
        inside = sample(5, 2, 8)
        for y in (inside, x):
            same(RoPE().rotate(y, POSITIONS, out=y), expected)
    assert (inside.is_inference(), x.is_inference()) == (True, False)


@pytest.mark.parametrize("view", ["every second component", "negated"])
def test_out_that_no_kernel_writes(view: str) -> None:
    x = VIEWS[view](sample(1, 5, 2, 8))
    expected = truth(rotate, x.clone())
    with pytest.raises(RopeError, match="last axis of out is not contiguous, or holds"):
        RoPE().rotate(x, POSITIONS, out=x)
    with rope_xp.use_backend(None):
        same(RoPE().rotate(x, POSITIONS, out=x), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", [{}, {"rotary_dim": 4, "rotary_offset": 1}], ids=str)
def test_gradients_and_theirs(layout: str, part: dict[str, int]) -> None:
    rope = RoPE(layout=layout, scaling=Temperature(2.0), **part)
    q, k = (sample(5, n, 6, dtype=torch.float64, grad=True) for n in (2, 1))
    for f in (
        lambda q, k: rope.apply(q, k, POSITIONS),
        lambda q, k: rope.unrotate(q, POSITIONS),
        lambda q, k: rope.apply(q, k, POSITIONS, k_positions=POSITIONS - 1),
    ):
        assert torch.autograd.gradcheck(f, (q, k), check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, (q, k), check_batched_grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_plain_operations(dtype: torch.dtype, layout: str) -> None:
    rope = RoPE(layout=layout, rotary_dim=8, scaling=Temperature(2.0))
    q, k = sample(1, 5, 4, 16, dtype=dtype, grad=True), sample(1, 5, 2, 16, dtype=dtype, grad=True)
    weights = [sample(*x.shape, dtype=dtype).flip(1) for x in (q, k)]

    def gradients() -> Any:
        return torch.autograd.grad(rope.apply(q, k, POSITIONS), (q, k), weights)

    for got, expected in zip(gradients(), truth(gradients), strict=True):
        same(got, expected)


def test_only_angles_are_saved() -> None:
    saved: list[torch.Tensor] = []
    q, k = sample(7, 5, 4, 16, grad=True), sample(7, 5, 2, 16, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        RoPE().apply(q, k, POSITIONS)
    assert {x.data_ptr() for x in saved[1:]} == {x.data_ptr() for x in digit_tables(16)}
    same(saved[0], POSITIONS)


def test_positions_have_gradients() -> None:
    x = sample(5, 2, 8, dtype=torch.float64)
    positions = torch.linspace(0.25, 50.25, 5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RopeError, match="with respect to angles"):
        rotate(x, positions)
    with rope_xp.use_backend(None):
        assert torch.autograd.gradcheck(lambda p: rotate(x, p), positions)
        same(rotate(x, positions.detach()), rotate(x, positions).detach())


def test_vmap() -> None:
    x, p = sample(5, 2, 8, 3), torch.stack([POSITIONS, POSITIONS - 1, POSITIONS // 2])
    maps = torch.func.vmap
    each = [rotate(x[..., i]) for i in range(3)]
    own = [rotate(x[..., i], p[i]) for i in range(3)]
    same(maps(rotate, (3,))(x), torch.stack(each))
    same(maps(rotate, (3,), 2)(x), torch.stack(each, 2))
    same(maps(rotate, (None, 0))(x[..., 0], p), torch.stack([rotate(x[..., 0], a) for a in p]))
    same(maps(rotate, (3, 1))(x, p.mT), torch.stack(own))
    tables = [torch.stack(t) for t in zip(*(RoPE().cos_sin(a, 8) for a in p), strict=True)]
    same(maps(rope_xp.apply_tables, (3, 0, 0))(x, *tables), torch.stack(own))
    keys = maps(lambda q, k: RoPE().apply(q, k, POSITIONS), (3, None))(x, x[:, :1, :, 0])
    same(keys[0], torch.stack(each))
    same(keys[1], torch.stack([each[0][:, :1]] * 3))


def test_grad_of_func() -> None:
    x, w = sample(3, 5, 2, 8), sample(3, 5, 2, 8).flip(0)
    grad = torch.func.grad(lambda x, w: (rotate(x) * w).sum())
    expected = truth(grad, x, w)
    same(grad(x, w), expected)
    same(torch.func.vmap(grad)(x, w), expected)
    small = x[0, :, 0, :4].double()
    same(torch.func.jacrev(rotate)(small), truth(torch.func.jacrev(rotate), small))


def test_transforms_that_take_plain_operations() -> None:
    x, forward_ad = sample(5, 2, 8), torch.autograd.forward_ad
    with rope_xp.use_backend(None):
        expected = rotate(x)
        assert rope_xp.explain(x, x).path == KERNELS
        for got in torch.func.jvp(rotate, (x,), (x,)):
            same(got, expected)
        with forward_ad.dual_level():
            same(forward_ad.unpack_dual(rotate(forward_ad.make_dual(x, x))).tangent, expected)
        same(torch.func.functionalize(rotate)(x), expected)
        hessian = torch.func.hessian(lambda x: rotate(x).pow(2).sum())(x[:, :1, :2])
        # cos**2 + sin**2, of tables within 3.4e-7 and twice over
        torch.testing.assert_close(hessian.reshape(10, 10), 2 * torch.eye(10), rtol=0, atol=3e-6)


def recording(graphs: list[set[str]]) -> Any:
    """Return a backend of torch.compile that keeps what graphs call, and runs them as they are."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> Any:
        return rope_xp.apply(q, k, p, layout="half", scaling=Temperature(2.0))


def turned(attention: Callable[..., Any], tokens: int, p: Any) -> Any:
    """Return results and gradients."""
    q, k = sample(2, tokens, 4, 16, grad=True), sample(2, tokens, 2, 16, grad=True)
    results = attention(q, k, p)
    return *results, *torch.autograd.grad([x.square().sum() for x in results], (q, k))


@pytest.mark.parametrize("path", [KERNELS, None])
def test_graphs_hold_the_operator_and_serve_all_lengths(path: str | None) -> None:
    torch._dynamo.reset()
    graphs: list[set[str]] = []
    with rope_xp.use_backend(path):
        compiled = torch.compile(Attention(), fullgraph=True, backend=recording(graphs))
        for tokens in (5, 9, 33, 700):
            p = torch.arange(tokens) + 70_000
            same(turned(compiled, tokens, p), turned(Attention(), tokens, p))
    assert len(graphs) == 4  # forward and backward, of one length and of all
    assert all("rope_xp.rotate_pair.default" in graph for graph in graphs)


def test_generated_code_has_the_bits_of_eager() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    same(turned(torch.compile(Attention()), 5, POSITIONS), turned(Attention(), 5, POSITIONS))
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_graph_runs_where_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Attention(), fullgraph=True, backend="aot_eager")
    expected = turned(compiled, 5, POSITIONS)
    given = torch.compile(rope_xp.apply_tables, fullgraph=True, backend="aot_eager")
    expected_given = given(*(tables := (sample(2, 5, 4, 16), *RoPE().cos_sin(POSITIONS, 16))))

    def fail(*_: object) -> None:
        raise Unavailable

    monkeypatch.setattr(_compiled, "kernel", fail)
    monkeypatch.setattr(gpu, "load", fail)
    same(turned(compiled, 5, POSITIONS), expected)
    same(given(*tables), expected_given)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_need_no_rope_xp(strict: bool) -> None:
    arguments = sample(2, 5, 4, 16), sample(2, 5, 2, 16), POSITIONS
    with rope_xp.use_backend(None):
        program = torch.export.export(Attention(), arguments, strict=strict)
    assert not [n for n in program.graph.nodes if "rope_xp" in str(n.target)]
    same(program.module()(*arguments), Attention()(*arguments))
