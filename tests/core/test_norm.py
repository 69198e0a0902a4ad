"""norm=: RMSNorm and rotation in one call, as both are apart, on every backend."""

from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.random import Generator
from support.bits import same, sample
from support.equality import LAYOUTS, POSITIONS
from support.kinds import KINDS
from support.programs import run
from support.rounding import nearest
from support.targets import TARGETS, Target, rows, truth

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError, use_path

HALF = RoPE(layout="half")
WEIGHTS = {"none": None, "head": (40,), "slice": (), "heads": (2, 40), "float64": (40,)}
ROPES = {"head": RoPE(layout="half"), "slice": RoPE(rotary_dim=16, rotary_offset=5)}
ROPES |= {"tail": RoPE(layout="interleaved_to_half", rotary_dim=16, rotary_offset=-16)}
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-21, "float64": 2.0**-50}


def make(rng: Generator, rope: RoPE, kind: str, dtype: str) -> list[np.ndarray]:
    q, k = (sample(rng, 2, 9, heads, 40, dtype=dtype) for heads in (4, 2))
    shape = WEIGHTS[kind]
    if shape is None:
        return [q, k]
    shape = shape or (rope.rotary_dim or 40,)
    q_shape = (4, *shape[1:]) if len(shape) == 2 else shape
    weights = sample(rng, *q_shape), sample(rng, *shape)
    return [q, k, *(w.astype(np.float64 if kind == "float64" else dtype) for w in weights)]


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
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("dtype", EPS)
def test_norms_of_every_backend_equal_the_portable_path(backend, rope, kind, dtype, rng):
    if backend.compiles and dtype in ("float16", "float64"):
        pytest.skip("what compiles each case is tested with two dtypes")
    wide = kind == "float64" or dtype == "float64"
    if dtype not in backend.floats or (wide and "float64" not in backend.floats):
        pytest.skip(f"{backend} is not tested with {dtype}")

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return ROPES[rope].apply(q, k, POSITIONS, norm=QKNorm(*weights, eps=1e-3, offset=1.0))

    arrays = make(rng, ROPES[rope], kind, dtype)
    length = {"none": 40, "heads": 40}.get(kind, len(arrays[-1]))
    reasons: dict[str, str] = {}
    if kind == "heads":
        reasons |= dict.fromkeys(("native", "cuda", "triton"), "one weight for all heads")
    if length != (ROPES[rope].rotary_dim or 40) or (kind == "float64") > (dtype == "float64"):
        reasons["cuda"] = "normalizes what is rotated"
    if backend.path in reasons:
        with pytest.raises(RopeError, match=reasons[backend.path]):
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
    rope, positions = RoPE(layout="half"), rng.integers(0, 1 << 17, 300)
    got = rope.rotate(x, positions, norm=(weight, 1e-6)).astype(np.float64)
    cos, sin = rope.cos_sin(positions, 16, dtype=np.float64 if dtype == "float64" else np.float32)
    expected = np.empty_like(got)
    with mpmath.workdps(50):
        for row, y, c, s in zip(x.astype(np.float64), expected, cos, sin, strict=True):
            exact = [mpmath.mpf(v) for v in row]
            factor = 1 / mpmath.sqrt(sum(v * v for v in exact) / 16 + mpmath.mpf(1e-6))
            a = [v * float(w) * factor for v, w in zip(exact, weight, strict=True)]
            for i in range(8):
                y[i] = a[i] * float(c[i]) - a[i + 8] * float(s[i])
                y[i + 8] = a[i + 8] * float(c[i]) + a[i] * float(s[i])
    bound = 2 * (2.0**-52 if dtype == "float64" else 2.0**-23) * np.abs(expected).max(1)[:, None]
    step = EPS[dtype] if "16" in dtype else 0.0
    distance = np.abs(got - expected)
    assert (distance <= bound + step / 2 * np.abs(expected) * (1 + step)).all()
    if step:  # rounded once: nearly all are the nearest
        assert (got == nearest(expected, dtype)).mean() > 0.99


HF = {"Qwen3RMSNorm": ("qwen3", 0.0), "Gemma3RMSNorm": ("gemma3", 1.0)}


@pytest.mark.parametrize("kind", HF)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_round_between_has_the_bits_of_hugging_face(kind, dtype):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    library, offset = HF[kind]
    module = getattr(transformers.models, library)
    norm = getattr(getattr(module, f"modeling_{library}"), kind)(64, eps=1e-6)
    norm = norm.to(getattr(torch, dtype))
    with torch.no_grad():
        norm.weight.normal_()
        x = torch.randn(1, 4, 50, 64).to(norm.weight.dtype)
        expected = RoPE(layout="half").rotate(norm(x), axes="bhsd")
        option = QKNorm(norm.weight, eps=1e-6, offset=offset, round_between=True)
        assert torch.equal(RoPE(layout="half").rotate(x, axes="bhsd", norm=option), expected)


X, W, LONG = (np.ones(shape, np.float32) for shape in ((1, 3, 2, 8), 8, 9))
BAD: dict[str, tuple[type[Exception], Any]] = {
    "eps must be positive": (RopeError, lambda: QKNorm(W, W, eps=0.0)),
    "offset must be a number; got '1'": (TypeError, lambda: QKNorm(W, W, offset="1")),  # type: ignore[arg-type]  # wrong on purpose
    "offset must be a number; got array": (TypeError, lambda: QKNorm(W, W, offset=W)),  # type: ignore[arg-type]  # wrong on purpose
    "offset must be at least 0 and finite; got -1.0": (RopeError, lambda: QKNorm(W, offset=-1.0)),
    "round_between must be": (TypeError, lambda: QKNorm(W, W, round_between=1)),  # type: ignore[arg-type]  # wrong on purpose
    r"norm.q_weight has shape \(9,\); it must be \(8,\) or \(2, 8\)": (
        RopeError,
        lambda: QKNorm(LONG, W),
    ),
    "norm.k_weight is a numpy array .* int64": (TypeError, lambda: QKNorm(W, np.ones(8, np.int64))),
    "norm must be a rope_xp.QKNorm; got dict": (TypeError, dict),
    "norm.k_weight overlaps|overlaps norm.k_weight": (RopeError, lambda: QKNorm(W, X[0, 0, 0])),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_norms_raise_and_write_nothing(message):
    error, build = BAD[message]
    q, k = np.full_like(X, 3.0), X
    with pytest.raises(error, match=message):
        rope_xp.apply(q, k, out=(q, k), norm=build())
    assert (q == 3).all()
    assert (k == 1).all()


def test_cached_calls_tell_norms_apart(rng):
    q, k, rope = sample(rng, 1, 1, 4, 64), sample(rng, 1, 1, 2, 64), RoPE(layout="half")
    a, b = sample(rng, 64), sample(rng, 64)
    norms = [None, QKNorm(), QKNorm(a), QKNorm(None, a), QKNorm(a, a), QKNorm(b, a)]
    norms += [QKNorm(a, a, eps=0.1), QKNorm(a, a, offset=1.0), QKNorm(a, a, round_between=True)]
    wanted = [truth(rope.apply, q, k, [5], norm=norm) for norm in norms]
    for _ in range(3):
        for norm, expected in zip(norms, wanted, strict=True):
            same(rope.apply(q, k, [5], norm=norm), expected)


def test_norms_passed_in_every_way_give_the_same_bits(rng):
    q, k, w = sample(rng, 1, 5, 4, 64), sample(rng, 1, 5, 2, 64), sample(rng, 64)
    rope, norm = RoPE(layout="half"), QKNorm(w, w, eps=1e-3)
    expected = rope.apply(q, k, norm=norm)
    angles, cache = rope.at(np.arange(5), like=q), np.zeros((9, 2, 64), np.float32)
    rope.apply(q, k, norm=norm, out=(None, cache), slots=[4, 8, 0, 1, 2])
    for pair in (
        rope_xp.apply(q, k, layout="half", norm=norm),
        angles.apply(q, k, norm=norm),
        (angles.rotate(q, norm=(w, 1e-3)), cache[None, [4, 8, 0, 1, 2]]),
        (rope.rotate(q, norm=norm), expected[1]),
    ):
        same(pair, expected)
    assert rope_xp.explain(q, k, rope=rope, norm=norm).path == "native"
    two_steps = QKNorm(w, w, round_between=True)
    assert rope_xp.explain(q, k, rope=rope, norm=two_steps).path == "native"


# --- weights: read at each call, whatever their memory --------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_any_memory_equal_plain_ones(kind, rng):
    q, weight = sample(rng, 1, 5, 3, 16), sample(rng, 16)
    expected, _ = HALF.apply(q, q, norm=QKNorm(weight, weight))
    changed = KINDS[kind](weight)
    for _ in range(3):
        same(HALF.apply(q, q, norm=QKNorm(changed, changed))[0], expected)


def test_weights_that_change_between_calls_are_read_anew(rng):
    q, weight = sample(rng, 1, 5, 3, 16), sample(rng, 16)
    norm = QKNorm(weight, weight)
    for _ in range(4):
        weight += 1
        same(HALF.apply(q, q, norm=norm), truth(HALF.apply, q, q, norm=norm))


def test_rows_of_zeros_stay_zeros_at_the_smallest_eps():
    x = np.zeros((5, 2, 16), np.float32)
    for path in ("portable", "chunked", None):
        with use_path(path):
            assert not HALF.rotate(x, norm=(None, 2.0**-126)).any()
    with pytest.raises(RopeError, match=r"eps must be at least 2\*\*-126, .*; got 5e-324"):
        QKNorm(eps=5e-324)


def test_weights_of_unequal_parts_of_a_head_are_refused():
    q = np.ones((5, 2, 16), np.float32)
    with pytest.raises(RopeError, match="must normalize the same components of q and k"):
        RoPE(rotary_dim=8).apply(q, q, norm=QKNorm(np.ones(16), np.ones(8)))


@pytest.mark.slow  # a process that imports jax
def test_a_norm_without_weights_is_a_pytree_before_any_array():
    pytest.importorskip("jax")
    rotate = "f = jax.jit(lambda q, norm: rope_xp.RoPE().rotate(q, norm=norm))"
    call = "f(jax.numpy.ones((3, 2, 8)), rope_xp.QKNorm()).shape"
    assert run("-c", f"import jax, rope_xp\n{rotate}\nprint({call})") == "(3, 2, 8)\n"


# --- derivatives ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rope", "kind"), [("head", "head"), ("slice", "slice"), ("slice", "none")]
)
def test_gradients_of_torch_equal_differences(rope, kind):
    torch = pytest.importorskip("torch")
    shapes = (1, 3, 2, 24), (1, 3, 1, 24), *[{"head": (24,), "slice": (16,)}.get(kind, ())] * 2
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes if s]

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return ROPES[rope].apply(q, k, [5, 70_000, 2], norm=QKNorm(*weights, offset=1.0))

    assert torch.autograd.gradcheck(apply, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(apply, inputs, fast_mode=True)
    q, k, *weights = inputs
    assert rope_xp.explain(q, k, rope=ROPES[rope], norm=QKNorm(*weights)).path == "native"


def test_gradients_compiled_and_checkpointed_equal_plain_ones():
    n = 1024  # of which a graph has the operator, and of fewer plain operations
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    shapes = (1, n, 8, 64), (1, n, 2, 64), (64,), (64,)
    inputs = [torch.randn(s, requires_grad=True) for s in shapes]
    rope, grads = RoPE(layout="half"), [torch.randn(s) for s in shapes[:2]]

    def apply(q: Any, k: Any, *weights: Any) -> Any:
        return rope.apply(q, k, norm=QKNorm(*weights))

    expected = torch.autograd.grad(apply(*inputs), inputs, grads)
    torch._dynamo.reset()
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(*inputs), inputs, grads)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    again = checkpoint(apply, *inputs, use_reentrant=False)
    got = torch.autograd.grad(again, inputs, grads)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_gradients_of_jax_equal_those_of_torch(rng):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    arrays = [sample(rng, *s) for s in ((1, 3, 2, 64), (1, 3, 1, 64), (64,), (64,))]

    def loss(q: Any, k: Any, norm: QKNorm) -> Any:
        a, b = RoPE(layout="half").apply(q, k, norm=norm)
        return (a**3).sum() + (b**3).sum()

    q, k, *weights = map(jax.numpy.asarray, arrays)
    d_q, d_k, d_norm = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, QKNorm(*weights))
    tensors = [torch.from_numpy(x).requires_grad_() for x in arrays]
    loss(*tensors[:2], QKNorm(*tensors[2:])).backward()
    for got, tensor in zip((d_q, d_k, d_norm.q_weight, d_norm.k_weight), tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-4, atol=1e-4)
