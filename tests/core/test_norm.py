"""norm=: RMSNorm and rotation in one call, as both are apart, on every backend."""

from typing import Any

import mpmath
import numpy as np
import pytest
from support.bits import same, sample
from support.equality import LAYOUTS, POSITIONS
from support.kinds import KINDS
from support.programs import run
from support.rounding import nearest
from support.targets import TARGETS, Target, rows, truth

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError, use_path

HALF = RoPE(layout="half")
ROPES = {"head": HALF, "slice": RoPE(rotary_dim=16, rotary_offset=5)}
ROPES |= {"tail": RoPE(layout="interleaved_to_half", rotary_dim=16, rotary_offset=-16)}
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-50}


def compare(backend: Target, got: Any, expected: np.ndarray) -> None:
    got, step = backend.back(got), EPS[expected.dtype.name]
    # Compilers sum squares in an order of their own.
    if backend.ulps == 0 and backend.name not in ("torch-compile", "mlx"):
        same(got, expected)
        return
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    assert (np.abs(got - expected) <= step * np.abs(expected).max(-1, keepdims=True)).all()


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS if t.name != "numpy-cuda")))
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", ["none", "head", "slice", "heads", "float64"])
@pytest.mark.parametrize("dtype", EPS)
def test_norms_of_every_backend_equal_the_portable_path(backend, rope, kind, dtype, rng):
    if backend.compiles and dtype in ("float16", "float64"):
        pytest.skip("what compiles each case is tested with two dtypes")
    wide = kind == "float64" or dtype == "float64"
    if wide and "float64" not in backend.floats:
        pytest.skip("it has no float64")

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return ROPES[rope].apply(q, k, POSITIONS, norm=QKNorm(*weights, eps=1e-3, offset=1.0))

    arrays = [sample(rng, 2, 9, heads, 40, dtype=dtype) for heads in (4, 2)]
    for heads in () if kind == "none" else (4, 2):
        shape = {"heads": (heads, 40), "slice": (ROPES[rope].rotary_dim or 40,)}.get(kind, (40,))
        arrays.append(sample(rng, *shape, dtype="float64" if kind == "float64" else dtype))
    reason = None
    if backend.path == "cuda" and (
        (kind != "slice" and rope != "head") or (kind == "float64") > (dtype == "float64")
    ):
        reason = "normalizes what is rotated"
    elif backend.path in ("native", "cuda", "triton") and kind == "heads":
        reason = "one weight for all heads"
    if reason:
        with pytest.raises(RopeError, match=reason):
            apply(*map(backend.make, arrays))
        return
    expected = truth(apply, *arrays)
    for _ in range(1 if backend.compiles else 3):  # the slow path, then cached calls
        inputs = [backend.make(x) for x in arrays]
        for got, y in zip(backend.run(apply, *inputs), expected, strict=True):
            compare(backend, got, y)
        for x, before in zip(inputs, arrays, strict=True):
            np.testing.assert_array_equal(backend.back(x), before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [2, 46, 70])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_kernels_of_every_length_have_the_bits_of_the_formula(layout, n, dtype, rng):
    """Lengths that are no whole vectors, in place, in a slice of a wider array."""
    rope = RoPE(layout=layout, rotary_dim=n)
    wide, weight = sample(rng, 70, 3, n + 9, dtype=dtype), sample(rng, n + 5, dtype=dtype)
    x = wide[:, :, 2 : n + 7]
    expected = truth(rope.rotate, x, norm=(weight, 1e-6))
    with rope_xp.use_path("native"):
        for out in (None, x):
            same(rope.rotate(x, norm=(weight, 1e-6), out=out), expected)


@pytest.mark.parametrize("dtype", EPS)
def test_norms_are_within_two_eps_of_fifty_digits(dtype, rng):
    """Of the largest number of a row, before rounding."""
    x, weight = sample(rng, 300, 16, dtype=dtype), sample(rng, 16, dtype=dtype)
    positions = rng.integers(0, 1 << 17, 300)
    got = HALF.rotate(x, positions, norm=(weight, 1e-6)).astype(np.float64)
    cos, sin = HALF.cos_sin(positions, 16, dtype=np.float64 if dtype == "float64" else np.float32)
    expected = np.empty_like(got)
    with mpmath.workdps(50):
        for row, y, c, s in zip(x.astype(np.float64), expected, cos, sin, strict=True):
            exact = np.array([mpmath.mpf(v) for v in row])
            factor = 1 / mpmath.sqrt((exact**2).sum() / 16 + mpmath.mpf(1e-6))
            a, b = np.split(exact * weight.astype(float) * factor, 2)
            y[:8], y[8:] = a * c - b * s, b * c + a * s
    bound = 2 * (2.0**-52 if dtype == "float64" else 2.0**-23) * np.abs(expected).max(1)[:, None]
    step = EPS[dtype] if "16" in dtype else 0.0
    distance = np.abs(got - expected)
    assert (distance <= bound + step / 2 * np.abs(expected) * (1 + step)).all()
    if step:  # rounded once: nearly all are the nearest
        assert (got == nearest(expected, dtype)).mean() > 0.99


@pytest.mark.parametrize(("model", "offset"), [("Qwen3", 0.0), ("Gemma3", 1.0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_round_between_has_the_bits_of_hugging_face(model, offset, dtype):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    module = getattr(getattr(transformers.models, model.lower()), f"modeling_{model.lower()}")
    norm = getattr(module, f"{model}RMSNorm")(64, eps=1e-6).to(getattr(torch, dtype))
    with torch.no_grad():
        norm.weight.normal_()
        x = torch.randn(1, 4, 50, 64).to(norm.weight.dtype)
        expected = HALF.rotate(norm(x), axes="bhsd")
        option = QKNorm(norm.weight, eps=1e-6, offset=offset, round_between=True)
        assert torch.equal(HALF.rotate(x, axes="bhsd", norm=option), expected)


def test_cached_calls_tell_norms_apart(rng):
    q, k, a, b = (sample(rng, *shape) for shape in ((1, 1, 4, 64), (1, 1, 2, 64), (64,), (64,)))
    norms = [None, QKNorm(), QKNorm(a), QKNorm(None, a), QKNorm(a, a), QKNorm(b, a)]
    norms += [QKNorm(a, a, eps=0.1), QKNorm(a, a, offset=1.0), QKNorm(a, a, round_between=True)]
    wanted = [truth(HALF.apply, q, k, [5], norm=norm) for norm in norms]
    for norm, expected in 3 * [*zip(norms, wanted, strict=True)]:
        same(HALF.apply(q, k, [5], norm=norm), expected)


def test_norms_passed_in_every_way_give_the_same_bits(rng):
    q, k, w = sample(rng, 1, 5, 4, 64), sample(rng, 1, 5, 2, 64), sample(rng, 64)
    norm, cache = QKNorm(w, w, eps=1e-3), np.zeros((9, 2, 64), np.float32)
    expected, angles = HALF.apply(q, k, norm=norm), HALF.at(np.arange(5), like=q)
    HALF.apply(q, k, norm=norm, out=(None, cache), slots=[4, 8, 0, 1, 2])
    for pair in (
        rope_xp.apply(q, k, layout="half", norm=norm),
        angles.apply(q, k, norm=norm),
        (angles.rotate(q, norm=(w, 1e-3)), cache[None, [4, 8, 0, 1, 2]]),
        (HALF.rotate(q, norm=norm), expected[1]),
    ):
        same(pair, expected)
    assert rope_xp.explain(q, k, rope=HALF, norm=norm).path == "native"


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_any_memory_are_read_anew_at_each_call(kind, rng):
    q, weight = sample(rng, 1, 5, 3, 16), sample(rng, 16)
    for weights in (KINDS[kind](weight), weight):
        for _ in range(3):
            weight += 1  # of which some kinds are views
            norm = QKNorm(weights, weights)
            same(HALF.apply(q, q, norm=norm), truth(HALF.apply, q, q, norm=norm))


def test_rows_of_zeros_stay_zeros_at_the_smallest_eps():
    x = np.zeros((5, 2, 16), np.float32)
    for path in ("portable", "chunked", None):
        with use_path(path):
            assert not HALF.rotate(x, norm=(None, 2.0**-126)).any()


@pytest.mark.slow  # a process that imports jax
def test_a_norm_without_weights_is_a_pytree_before_any_array():
    pytest.importorskip("jax")
    rotate = "f = jax.jit(lambda q, norm: rope_xp.RoPE().rotate(q, norm=norm))"
    call = "f(jax.numpy.ones((3, 2, 8)), rope_xp.QKNorm()).shape"
    assert run("-c", f"import jax, rope_xp\n{rotate}\nprint({call})") == "(3, 2, 8)\n"


@pytest.mark.parametrize(
    ("rope", "kind"), [("head", "head"), ("slice", "slice"), ("slice", "none")]
)
def test_gradients_of_torch_equal_differences(rope, kind):
    torch = pytest.importorskip("torch")
    weights = {"head": [(24,)], "slice": [(16,)], "none": []}[kind]
    shapes = (1, 3, 2, 24), (1, 3, 1, 24), *2 * weights
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return ROPES[rope].apply(q, k, [5, 70_000, 2], norm=QKNorm(*weights, offset=1.0))

    assert torch.autograd.gradcheck(apply, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(apply, inputs, fast_mode=True)
    q, k, *weights = inputs
    assert rope_xp.explain(q, k, rope=ROPES[rope], norm=QKNorm(*weights)).path == "native"


def test_gradients_of_compiled_norms_equal_plain_ones():
    torch = pytest.importorskip("torch")
    # Of 1024 tokens a graph has the operator, and of fewer plain operations.
    shapes = (1, 1024, 8, 64), (1, 1024, 2, 64), (64,), (64,)
    inputs = [torch.randn(s, requires_grad=True) for s in shapes]
    grads = [torch.randn(s) for s in shapes[:2]]

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return HALF.apply(q, k, norm=QKNorm(*weights))

    expected = torch.autograd.grad(apply(*inputs), inputs, grads)
    torch._dynamo.reset()
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*inputs), inputs, grads)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_gradients_of_jax_equal_those_of_torch(rng):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    arrays = [sample(rng, *s) for s in ((1, 3, 2, 64), (1, 3, 1, 64), (64,), (64,))]

    def loss(q: Any, k: Any, norm: QKNorm) -> Any:
        a, b = HALF.apply(q, k, norm=norm)
        return (a**3).sum() + (b**3).sum()

    q, k, *weights = map(jax.numpy.asarray, arrays)
    d_q, d_k, d_norm = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, QKNorm(*weights))
    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    loss(*tensors[:2], QKNorm(*tensors[2:])).backward()
    for got, tensor in zip((d_q, d_k, d_norm.q_weight, d_norm.k_weight), tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-4, atol=1e-4)
