"""torch.compile: one graph for all lengths, exact angles in generated code, ropes kept apart."""

import dataclasses
import gc
import weakref
from itertools import product

import numpy as np
import pytest
from support.cases import slow
from support.oracles import true_cos_sin
from support.rules import Only
from support.torch_op import POSITIONS, noting, recording, same, sample

import rope_xp
from rope_xp import RoPE
from rope_xp._core import caches
from rope_xp.papers import encodings
from rope_xp.scaling import Linear, RIFLEx

torch = pytest.importorskip("torch")

HALF = RoPE(layout="half")
WEIGHT = torch.nn.Parameter(torch.ones(16))


def positions_of_every_kind(q, k, p):
    """Options inside, no positions, and those of numpy."""
    q, k = rope_xp.apply(q, k, p, layout="half", base=5e5, scaling=Linear(2.0))
    q, k = HALF.apply(q, k)
    return rope_xp.apply(q, k, np.arange(3)[:, None] * 1000, axes="bshd")


def norm_inside(q, k, p):
    return HALF.apply(q, k, p, norm=rope_xp.QKNorm(WEIGHT, WEIGHT))


@pytest.mark.parametrize("function", [positions_of_every_kind, slow(norm_inside)])
def test_compiled_apply_takes_two_graphs_for_all_lengths_without_warnings(function):
    """The first is for one length, the second for all. pytest makes warnings errors."""
    graphs = []
    compiled = torch.compile(function, fullgraph=True, backend=noting(graphs))
    for tokens in (5, 9, 2049):
        q, k = sample(3, tokens, 4, 16), sample(3, tokens, 2, 16)
        p = torch.arange(tokens) + 70_000
        rtol = 1e-6 if function is norm_inside else 0  # sums of squares differ in their order
        torch.testing.assert_close(compiled(q, k, p), function(q, k, p), rtol=rtol, atol=rtol)
    assert len(graphs) <= 2


@pytest.mark.slow
@pytest.mark.usefixtures("small_heap")
def test_a_graph_of_many_layers_holds_tables_once_and_frees_them():
    graphs = []
    with rope_xp.use_path("native"):
        layers = torch.compile(
            lambda x: [HALF.rotate(x * n) for n in range(8)], fullgraph=True, backend=noting(graphs)
        )
        layers(sample(1, 5, 4, 16))
    held = [*graphs[0].parameters(), *graphs[0].buffers(), *vars(graphs[0]).values()]
    held = [x for x in held if isinstance(x, torch.Tensor) and x.numel() > 1000]
    assert 0 < len({x.data_ptr() for x in held}) <= 3
    tables = [weakref.ref(x) for x in held]
    del layers, held
    graphs.clear()
    torch._dynamo.reset()
    rope_xp.clear_caches()
    gc.collect()
    assert not any(table() is not None for table in tables)
    assert not caches._ORDER


@pytest.mark.slow
def test_cos_sin_in_generated_code_is_exact_and_nan_out_of_range():
    """The trap: traced, the float64 table builder was compiled in float32, off by 4.4e-4.

    In C++ abs of the most negative integer is undefined, and the compiler makes use of that.
    """
    true = tuple(torch.tensor(t).float() for t in true_cos_sin(POSITIONS.tolist(), 1e4, 8))
    outside = torch.full((1,), -(2**31), dtype=torch.int32)
    compiled = torch.compile(lambda *each: [RoPE().cos_sin(p, 8) for p in each], fullgraph=True)
    tables, nowhere = compiled(POSITIONS, outside)
    torch.testing.assert_close(tables, true, rtol=0, atol=4e-7)
    assert torch.stack(nowhere).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, slow(torch.float32)], ids=str)
def test_rotations_in_generated_code_equal_eager_ones(dtype):
    q, k = (sample(1, 5, n, 16, dtype=dtype, grad=dtype is torch.float32) for n in (4, 2))
    results = [f(q, k, POSITIONS) for f in (torch.compile(HALF.apply, fullgraph=True), HALF.apply)]
    if dtype is torch.bfloat16:
        same(*results)
        return
    bound = 2 * float(np.spacing(np.float32(q.detach().abs().max())))  # of fused operations
    torch.testing.assert_close(*results, rtol=0, atol=bound)
    gradients = [torch.autograd.grad(y.sum(), q) for y, _ in results]
    torch.testing.assert_close(*gradients, rtol=0, atol=5e-7)


def two_ropes(x):
    """Rotate by ropes made inside: Dynamo may take one with default fields for either."""
    first = RoPE(base=5e3, scaling=Linear(4.0)).rotate(x)
    return first, rope_xp.apply(x, x, base=7e3, position_axes=(0, 0, 0, 0))[0]


def in_place(x):
    RoPE().rotate(x, out=x)
    return x * 2


@pytest.mark.parametrize("function", [two_ropes, in_place])
def test_compiled_functions_equal_eager_ones(function):
    x, y = sample(900, 2, 8), sample(900, 2, 8)
    same(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(y))
    same(x, y)


class Slower(RoPE):
    def frequencies(self, head_dim: int) -> np.ndarray:
        return super().frequencies(head_dim) / 2


ONLY = RoPE(scaling=Only((1.0, 0.5, 0.25, 0.125)))  # of a third party, and no dataclass
AXIAL = RoPE.axial((6, 2))
ROPES = [
    *(RoPE(base=1e4), RoPE(position_axes=(0, 0, 1, 1)), RoPE(scaling=Linear(2.0))),
    *(RoPE(base=1e6), RoPE(rotary_dim=4), RoPE(scaling=Linear(3.0)), ONLY, Slower()),
    dataclasses.replace(AXIAL, scaling=RIFLEx(2, 42, AXIAL.scaling, axis=0)),
    RoPE(rotary_dim=4, rotary_offset=-4),
]


class Layer(torch.nn.Module):
    def forward(self, x, p):
        return self.rope.rotate(x, p), self.rope.unrotate(x)


@torch._dynamo.config.patch(recompile_limit=64)  # far more ropes than a model has
@pytest.mark.parametrize(("dynamic", "every", "sizes"), [(None, 3, 1), slow(True, 1, 2)])
def test_compiled_layers_keep_their_ropes_apart(dynamic, every, sizes):
    """One forward function, many ropes and sizes: numbers that Dynamo would make symbols of."""
    for rope, (tokens, head_dim) in product(ROPES[::every], ((5, 8), (7, 16))[:sizes]):
        x = sample(tokens, 2, 8 if rope is ONLY or rope.position_axes else head_dim)
        p = torch.arange(tokens) + 70_000
        p = torch.stack([p, 2 * p]) if rope.position_axes else p
        layer = Layer()
        layer.rope = rope
        compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=dynamic)
        same(compiled(x, p), layer(x, p))


@pytest.mark.parametrize(
    "positions", [POSITIONS // 7 + 0.25, slow(POSITIONS), slow(range(3)), slow([1, 16_777_217.7])]
)
@pytest.mark.parametrize("options", [{}, {"device": torch.device("cpu"), "dtype": torch.float64}])
def test_compiled_cos_sin_of_positions_of_every_kind_equals_eager(positions, options):
    """Of tensors, or of Python numbers, which say nothing of library and device."""

    def tables(positions):
        given = {**options, "xp": torch}
        return *RoPE().cos_sin(positions, 8, **given), encodings.sinusoidal(positions, 8, **given)

    compiled = torch.compile(tables, fullgraph=True, backend="aot_eager")
    same(compiled(positions), tables(positions))


@pytest.mark.parametrize(
    ("layout", "tokens", "dynamic", "fused"),
    [
        ("half", 2048, None, True),  # 2**18 numbers in both
        ("half", 2049, None, False),
        slow("interleaved", 129, None, False),
        slow("half", 2, {"min": 2, "max": 2048}, True),
        slow("half", 2, {"min": 2, "max": 2049}, False),
    ],
)
def test_rotations_known_to_be_small_are_left_to_the_compiler(layout, tokens, dynamic, fused):
    graphs = []
    rope = RoPE(layout=layout)
    q, k, p = sample(1, tokens, 6, 16), sample(1, tokens, 2, 16), torch.arange(tokens) + 70_000
    for x, axis in ((q, 1), (k, 1), (p, 0)):
        if dynamic is not None:
            torch._dynamo.mark_dynamic(x, axis, **dynamic)
    compiled = torch.compile(rope.apply, fullgraph=True, backend=recording(graphs))
    same(compiled(q, k, p), rope.apply(q, k, p))
    (graph,) = graphs
    assert any("rope_xp.rotate" in name for name in graph) is not fused
