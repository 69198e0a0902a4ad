"""apply_angles, and tables with a heads axis: every backend against complex numbers in float64."""

import importlib
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.oracles import exact_cos_sin, rotate_complex
from support.targets import TARGETS, rows, truth

from rope_xp import QKNorm, RoPE, RopeError, apply_angles, apply_tables

HOSTS = rows(("numpy-portable", "numpy-chunked", "numpy-native", "torch", "torch-native"))
# cos and sin within 1.2e-7 each, |x| below 5, and two roundings of the rotation.
CLOSE = {"rtol": 0, "atol": 3e-6}


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def expect(x: np.ndarray, angles: np.ndarray, layout: str = "half", offset: int = 0) -> np.ndarray:
    """Return x (batch, tokens, heads, head_dim) rotated in float64."""
    angles = angles.astype(np.float64) if angles.ndim == 4 else angles[..., None, :].astype(float)
    repeated = np.repeat(angles, x.shape[2] // angles.shape[-2], axis=-2)
    return rotate_complex(x, repeated, layout, offset)


# Heads of q and k, the shape of angles and of k_angles, layout, axes of arrays, rotary_offset.
CASES = (
    ((4, 2), (5, 8), None, "half", "bshd", 0),
    ((4, 2), (1, 5, 8), None, "interleaved", "bhsd", -16),
    ((4, 4), (2, 5, 4, 8), None, "half", "bshd", 3),
    ((4, 2), (2, 5, 2, 10), None, "interleaved", "bshd", 0),
    ((6, 3), (1, 5, 3, 3), None, "interleaved_to_half", "bhsd", 2),
    ((4, 2), (2, 1, 2, 8), None, "half", "hbsd", 0),
    ((8, 4), (2, 5, 4, 1), None, "half", "sbhd", -2),
    ((4, 2), (2, 5, 4, 8), (2, 5, 2, 8), "half", "bshd", 0),
    ((3, 2), (2, 5, 3, 8), (5, 8), "half", "bhsd", 0),
    ((4, 2), (2, 5, 1, 8), (2, 5, 2, 8), "interleaved", "bshd", 1),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_angles_of_every_shape_equal_complex_numbers(backend, case, rng):
    heads, shape, k_shape, layout, axes, offset = case
    pair = [draw(rng, 2, 5, n, 20) for n in heads]
    angles = [9 * draw(rng, *shape)]
    angles.append(9 * draw(rng, *k_shape) if k_shape else angles[0])
    order = ["bshd".index(name) for name in axes]
    arrays = [backend.make(x.transpose(order).copy()) for x in pair]
    RoPE().rotate(arrays[0], axes=axes)  # as in test_frequencies.py

    def rotate(q: Any, k: Any, a: Any, k_a: Any) -> Any:
        options = {"axes": axes, "rotary_offset": offset, "k_angles": k_a if k_shape else None}
        return apply_angles(q, k, a, layout=layout, **options)

    for _ in range(3):  # the first call, a cached one, and a recent one
        results = backend.run(rotate, *arrays, *map(backend.make, angles))
        for x, a, y in zip(pair, angles, results, strict=True):
            expected = expect(x, a, layout, offset % 20).transpose(order)
            np.testing.assert_allclose(backend.back(y), expected, **CLOSE)
        if backend.compiles:
            break
        angles = [a[..., ::-1] + 1 for a in angles]


def test_tables_of_each_head_rotate_with_the_bits_of_that_head_alone(backend, rng):
    """FoPE mixes cosines of several frequencies by head: they are those of no angle."""
    x, (cos, sin) = draw(rng, 2, 5, 4, 20), draw(rng, 2, 2, 5, 2, 8)
    rotate = partial(apply_tables, layout="half", rotary_offset=4)
    alone = [truth(rotate, x[:, :, [h]], cos[:, :, h // 2], sin[:, :, h // 2]) for h in range(4)]
    for axes, order in (("bshd", (0, 1, 2, 3)), ("bhsd", (0, 2, 1, 3))):
        arrays = map(backend.make, (x.transpose(order).copy(), cos, sin))
        result = backend.back(backend.run(partial(rotate, axes=axes), *arrays)).transpose(order)
        bound = 1e-6 * np.abs(x).max() * np.abs((cos, sin)).max() if backend.ulps else 0
        np.testing.assert_allclose(result, np.concatenate(alone, axis=2), rtol=0, atol=bound)


def test_angles_objects_take_tables_of_each_head(backend, rng):
    q, k, angles = draw(rng, 2, 5, 4, 8), draw(rng, 2, 5, 2, 8), draw(rng, 2, 5, 2, 4)

    def rotate(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        shared = RoPE(layout="half").with_tables(cos, sin)
        return (*shared.apply(q, k), shared.unrotate(shared.rotate(q)))

    results = backend.run(rotate, *map(backend.make, (q, k, np.cos(angles), np.sin(angles))))
    for result, expected in zip(results, (expect(q, angles), expect(k, angles), q), strict=True):
        np.testing.assert_allclose(backend.back(result), expected, **CLOSE)


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS if t.name != "numpy-cuda")))
@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 5, 2, 8)], ids=["shared", "of heads"])
def test_a_norm_comes_before_the_rotation(backend, shape, rng):
    q, k, angles = draw(rng, 2, 5, 4, 16), draw(rng, 2, 5, 2, 16), draw(rng, *shape)
    for weights in ((draw(rng, 16), draw(rng, 16)), (draw(rng, 4, 16), draw(rng, 2, 16))):
        if weights[0].ndim > 1 and backend.path not in (None, "portable", "chunked"):
            continue  # a forced kernel takes one weight for all heads, and says so

        def rotate(q: Any, k: Any, a: Any, q_weight: Any, k_weight: Any) -> Any:
            return apply_angles(q, k, a, layout="half", norm=QKNorm(q_weight, k_weight, eps=0.5))

        results = backend.run(rotate, *map(backend.make, (q, k, angles, *weights)))
        for x, w, y in zip((q, k), weights, results, strict=True):
            squares = np.square(x, dtype=np.float64)
            normal = x / np.sqrt(squares.mean(-1, keepdims=True) + 0.5) * w
            np.testing.assert_allclose(backend.back(y), expect(normal, angles), rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
@pytest.mark.parametrize("backend", rows(("numpy", "torch", "array-api-strict", "mlx", "dask")))
def test_cosines_are_those_of_the_angle_as_given(backend, given, rng):
    """A float64 angle keeps its digits for float32 arrays, where those have float64."""
    angles = (rng.uniform(-1, 1, (1, 40)) * (1e6 if given == "float64" else 1e3)).astype(given)
    if given == "float64" and backend.module == "mlx":
        pytest.skip("mlx computes cos and sin of float64 in float32")
    cos, sin = exact_cos_sin((1.0,), tuple(angles[0].astype(float).tolist()))
    x = np.concatenate([np.ones((1, 1, 40)), np.zeros((1, 1, 40))], -1).astype("f4")
    made = backend.make(angles) if given in backend.floats else angles
    for y in apply_angles(*[backend.make(x)] * 2, made, layout="half"):
        assert np.abs(backend.back(y)[0] - np.concatenate([cos, sin], -1)).max() <= 2.4e-7


def sample(shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(s) for s in ((1, 2, 4, 5), (1, 2, 2, 5), shape)]


def tables_of(q: Any, k: Any, angles: Any) -> tuple[Any, Any]:
    """Rotate by tables that are leaves of their own: the squares keep them apart."""
    return tuple(apply_tables(x, angles, angles * angles, layout="half") for x in (q, k))


FUNCTIONS = (partial(apply_angles, layout="half"), tables_of)
SHAPES = ((2, 2), (1, 2, 2, 2))
of_angles_and_tables = pytest.mark.parametrize("function", FUNCTIONS, ids=["angles", "tables"])


@of_angles_and_tables
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_derivatives_of_torch_equal_differences(function, shape, rng):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(x).requires_grad_() for x in sample(shape, rng)]
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.slow
@pytest.mark.parametrize("function", [FUNCTIONS[0], FUNCTIONS[1]], ids=["angles", "tables"])
def test_derivatives_of_jax_under_jit_equal_differences(function, rng):
    jax = pytest.importorskip("jax")
    # Older versions have it among what is experimental alone.
    with (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64(True):
        arrays = [jax.numpy.asarray(x) for x in sample(SHAPES[1], rng)]
        check = importlib.import_module("jax.test_util").check_grads
        check(jax.jit(function), arrays, order=1)
        check(jax.jit(function), arrays, order=2, modes=["rev"])


@pytest.mark.parametrize("compiles", [False, True], ids=["kernels", "compiled"])
def test_gradients_of_compiled_and_of_kernels_equal_those_of_operations(compiles, rng):
    torch = pytest.importorskip("torch")
    arrays = [torch.from_numpy(x) for x in sample(SHAPES[1], rng)]

    def loss(*arrays: Any) -> Any:
        return sum((y * y.cos()).sum() for y in FUNCTIONS[0](*arrays))

    function = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiles else loss
    # A kernel rotates where angles are constants.
    for recorded in ((0, 1, 2),) if compiles else ((0, 1, 2), (0, 1)):
        gradients = []
        for differentiated in (partial(truth, loss), function):
            given = [x.clone().requires_grad_(i in recorded) for i, x in enumerate(arrays)]
            differentiated(*given).backward()
            gradients.append([given[i].grad for i in recorded])
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", HOSTS)
def test_results_in_place_and_of_strided_and_read_only_arrays_are_equal(backend, rng):
    wide, angles = draw(rng, 2, 5, 6, 40)[..., ::2], 3 * draw(rng, 2, 2, 5, 8).swapaxes(1, 2)
    angles.flags.writeable = False
    expected = [expect(x, angles) for x in (wide[:, :, :4], wide[:, :, 4:])]
    for times in range(3):
        x = backend.make(wide)
        a = angles if backend.module == "numpy" else backend.make(angles)
        q, k = x[:, :, :4], x[:, :, 4:]
        out = (q if times else backend.make(np.zeros((2, 5, 4, 20), np.float32)), k)
        results = apply_angles(q, k, a, layout="half", out=out)
        assert all(y is o for y, o in zip(results, out, strict=True))
        for y, e in zip(results, expected, strict=True):
            np.testing.assert_allclose(backend.back(y), e, **CLOSE)


@pytest.mark.parametrize("lengths", [(0, 5, 4, 2), (2, 0, 4, 2), (2, 5, 0, 0), (2, 5, 0, 2)])
def test_empty_axes_give_empty_results(backend, lengths):
    (*rows, q_heads, heads), f4 = lengths, np.float32
    shapes = (*rows, q_heads, 8), (*rows, heads, 8), (*rows, heads, 4)
    results = backend.run(FUNCTIONS[0], *(backend.make(np.zeros(s, f4)) for s in shapes))
    assert [backend.back(y).shape for y in results] == [*shapes[:2]]


def test_shared_angles_win_where_axes_are_missing(rng):
    x = draw(rng, 2, 2, 2, 8)
    angles = draw(rng, 2, 2, 4)  # (batch, tokens, r/2), and not (tokens, heads, r/2)
    for given in (angles, angles[None]):
        for y in apply_angles(x, x, given, layout="half"):
            np.testing.assert_allclose(y, expect(x, given), **CLOSE)


ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("angles has 4 heads, q 4 and k 2; pass angles with", {"angles": np.ones((1, 3, 4, 2))}),
    ("k_angles has 4 heads, k 2; pass k_angles", {"k_angles": np.ones((1, 3, 4, 2))}),
    ("pass all axes: (batch..., tokens, heads", {"angles": np.ones((3, 2, 2))}),
    ("angles[..., 0, 0] has shape (1, 4)", {"angles": np.ones((1, 4, 2, 2))}),
    ("angles has shape (2,); it needs two axes", {"angles": np.ones(2)}),
    ("k_angles[..., 0] has shape (2,)", {"k_angles": np.ones((2, 2))}),
    ("angles has 8 columns, one for each", {"angles": np.ones((3, 8))}),
    ("angles has 2 columns and k_angles 3", {"k_angles": np.ones((3, 3))}),
    ("does not fit in head_dim=8", {"rotary_offset": 6}),
    ("layout must be one of", {"layout": "neox"}),
    ("angles is a list", {"angles": [[1.0, 2.0]] * 3}),
    ("k_angles is a numpy array", {"k_angles": np.ones((3, 2), int)}),
    ("norm must be a rope_xp.QKNorm", {"norm": np.ones(8)}),
    ("out[0] overlaps k", {"out": "swapped"}),
]


@pytest.mark.parametrize(("message", "changed"), ERRORS)
def test_bad_arguments_raise_and_write_nothing(message, changed):
    q, k = np.ones((1, 3, 4, 8)), np.ones((1, 3, 2, 8))
    options = {"angles": np.ones((3, 2)), "out": (q, k)} | changed
    if options["out"] == "swapped":
        k = np.ones_like(q)
        options["out"] = (k, q)
    with pytest.raises((RopeError, TypeError), match=re.escape(message)):
        apply_angles(q, k, **options)
    assert (q == 1).all()
    assert (k == 1).all()


def test_tables_of_heads_are_checked_against_arrays():
    x, table = np.ones((1, 3, 4, 8)), np.ones((1, 3, 3, 2))
    with pytest.raises(RopeError, match="cos has 3 heads, x 4; pass cos with the heads of k"):
        apply_tables(x, table, table)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a numpy array and angles a torch array"):
        apply_angles(x, x, torch.ones(3, 2))
