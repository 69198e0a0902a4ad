"""torch.compile: one graph for all lengths, exact angles in generated code, ropes kept apart."""

import dataclasses

import numpy as np
import pytest
from support.cases import slow
from support.oracles import true_cos_sin
from support.torch_op import POSITIONS, noting, recording, same, sample

import rope_xp
from rope_xp import RoPE
from rope_xp.papers import encodings
from rope_xp.scaling import Linear

torch = pytest.importorskip("torch")


WEIGHT = torch.nn.Parameter(torch.ones(16))


def positions_of_every_kind(q, k, p):
    """Options inside, no positions, and those of numpy."""
    q, k = rope_xp.apply(q, k, p, layout="half", base=5e5, scaling=Linear(2.0))
    q, k = RoPE(layout="half").apply(q, k)
    return rope_xp.apply(q, k, np.arange(3)[:, None] * 1000, axes="bshd")


def norm_inside(q, k, p):
    return RoPE(layout="half").apply(q, k, p, norm=rope_xp.QKNorm(WEIGHT, WEIGHT))


@pytest.mark.parametrize("function", [positions_of_every_kind, slow(norm_inside)])
def test_compiled_calls_take_two_graphs_for_all_lengths_without_warnings(function):
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
def test_generated_code_has_exact_angles_and_nan_out_of_range():
    """The trap: traced, the float64 table builder was compiled in float32, off by 4.4e-4.

    In C++ abs of the most negative integer is undefined, and the compiler makes use of that.
    """
    true = tuple(torch.tensor(t).float() for t in true_cos_sin(POSITIONS.tolist(), 1e4, 8))
    outside = torch.full((1,), -(2**31), dtype=torch.int32)
    compiled = torch.compile(lambda *each: [RoPE().cos_sin(p, 8) for p in each], fullgraph=True)
    tables, nowhere = compiled(POSITIONS, outside)
    torch.testing.assert_close(tables, true, rtol=0, atol=4e-7)
    assert torch.stack(nowhere).isnan().all()


@pytest.mark.slow
def test_rotations_and_gradients_in_generated_code_equal_eager_ones():
    rotate = RoPE(layout="half").apply
    q, k = sample(1, 5, 4, 16, grad=True), sample(1, 5, 2, 16)
    got, expected = torch.compile(rotate, fullgraph=True)(q, k, POSITIONS), rotate(q, k, POSITIONS)
    bound = 2 * float(np.spacing(np.float32(q.detach().abs().max())))
    torch.testing.assert_close(got, expected, rtol=0, atol=bound)
    (grad,) = torch.autograd.grad(got[0].sum(), q)
    (expected_grad,) = torch.autograd.grad(expected[0].sum(), q)
    torch.testing.assert_close(grad, expected_grad, rtol=0, atol=5e-7)


def two_ropes(x):
    """Rotate by ropes made inside: Dynamo may take one with default fields for either."""
    first = RoPE(base=5e3, scaling=Linear(4.0)).rotate(x)
    return first, rope_xp.apply(x, x, base=7e3, position_axes=(0, 0, 0, 0))[0]


def in_place(x):
    RoPE().rotate(x, out=x)
    return x * 2


def there_and_back(x):
    p, rope = torch.arange(len(x)) + 70_000, RoPE(layout="half")
    return rope.unrotate(rope.rerotate(rope.rotate(x, p), p, p + 5), p + 5)


@pytest.mark.parametrize(
    ("function", "path"),
    [(two_ropes, None), (in_place, None), slow(there_and_back, "portable")],
)
def test_compiled_functions_equal_eager_ones(function, path):
    x, y = sample(900, 2, 8), sample(900, 2, 8)
    with rope_xp.use_path(path):
        same(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(y))
    same(x, y)


class Slower(RoPE):
    def frequencies(self, head_dim: int) -> np.ndarray:
        return super().frequencies(head_dim) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    factor: float
    derived: float = dataclasses.field(init=False, default=3.0)


@dataclasses.dataclass(frozen=True)
class Nested(rope_xp.scaling.Scaling):
    """A rule of a third party, of every kind of field."""

    inner: Inner
    factors: tuple[float, ...]
    attention_factor = 1.5

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        scale = np.array(self.factors) * self.inner.factor * self.inner.derived
        return rope_xp.scaling.inverse_frequencies(base, rotary_dim) / scale


class Layer(torch.nn.Module):
    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, x, p):
        return self.rope.rotate(x, p), self.rope.unrotate(x)


@torch._dynamo.config.patch(recompile_limit=64)  # far more ropes than a model has
@pytest.mark.parametrize(("dynamic", "every", "sizes"), [(None, 3, 1), slow(True, 2, 2)])
def test_compiled_layers_keep_their_ropes_apart(dynamic, every, sizes):
    """One forward function, many ropes and sizes: numbers that Dynamo would make symbols of."""
    rule = Nested(Inner(factor=2.0), (1.0, 2.0, 4.0, 8.0))
    ropes = [
        *(RoPE(base=1e4), RoPE(position_axes=(0, 0, 1, 1)), RoPE(scaling=Linear(2.0))),
        *(RoPE(base=1e6), RoPE(rotary_dim=4), RoPE(scaling=Linear(3.0)), RoPE(scaling=rule)),
        *(RoPE(rotary_dim=6), Slower(), RoPE(rotary_dim=4, rotary_offset=-4)),
    ]
    for rope in ropes[::every]:
        for head_dim in (8,) if rope.scaling is rule or rope.position_axes else (8, 16)[:sizes]:
            for tokens in (5, 7)[:sizes]:
                x = sample(tokens, 2, head_dim)
                p = torch.arange(tokens) + 70_000
                p = torch.stack([p, 2 * p]) if rope.position_axes else p
                layer = Layer(rope)
                compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=dynamic)
                same(compiled(x, p), layer(x, p))


WIDE = {"device": torch.device("cpu"), "dtype": torch.float64}


@pytest.mark.parametrize(
    ("positions", "options"),
    [
        *((POSITIONS // 7 + 0.25, WIDE), slow([1, 16_777_217.7], {})),
        slow(POSITIONS, {}),
        *(slow(positions, WIDE) for positions in (POSITIONS.tolist(), range(3), 7)),
    ],
)
def test_compiled_tables_of_positions_of_every_kind_equal_eager_ones(positions, options):
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
        slow("half", 2, {}, False),  # a graph for all lengths
        slow("half", 2, {"min": 2, "max": 2048}, True),
        slow("half", 2, {"min": 2, "max": 2049}, False),
    ],
)
def test_rotations_known_to_be_small_are_left_to_the_compiler(layout, tokens, dynamic, fused):
    graphs = []
    rope = RoPE(layout=layout)
    q, k, p = sample(1, tokens, 6, 16), sample(1, tokens, 2, 16), torch.arange(tokens) + 70_000
    if dynamic is not None:
        for x in (q, k):
            torch._dynamo.mark_dynamic(x, 1, **dynamic)
        torch._dynamo.mark_dynamic(p, 0, **dynamic)
    compiled = torch.compile(rope.apply, fullgraph=True, backend=recording(graphs))
    same(compiled(q, k, p), rope.apply(q, k, p))
    (graph,) = graphs
    assert any("rope_xp.rotate_pair" in name for name in graph) is not fused


def test_small_rotations_in_generated_code_have_the_bits_of_eager_ones():
    rope = RoPE(layout="half")
    q, k = (sample(2, 5, n, 16, dtype=torch.bfloat16) for n in (4, 2))
    got = torch.compile(rope.apply, fullgraph=True)(q, k, POSITIONS)
    same(got, rope.apply(q, k, POSITIONS))
