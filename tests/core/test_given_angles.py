"""apply_angles, and tables with a heads axis: every backend against complex numbers in float64."""

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.bits import sample
from support.oracles import exact_cos_sin, rotate_complex
from support.targets import TARGETS, rows, truth

from rope_xp import QKNorm, RoPE, apply_angles, apply_tables

# cos and sin within 1.2e-7 each, |x| below 5, and two roundings of the rotation.
CLOSE = {"rtol": 0, "atol": 3e-6}


def expect(x: np.ndarray, angles: np.ndarray, layout: str = "half", offset: int = 0) -> np.ndarray:
    """Return x (batch, tokens, heads, head_dim) rotated in float64."""
    angles = angles.astype(np.float64) if angles.ndim == 4 else angles[..., None, :].astype(float)
    repeated = np.repeat(angles, x.shape[2] // angles.shape[-2], axis=-2)
    return rotate_complex(x, repeated, layout, offset)


# Heads of q and k, the shape of angles and of k_angles, layout, axes of arrays, rotary_offset.
CASES = (
    ((4, 2), (5, 8), None, "half", "bshd", 0),
    ((4, 2), (1, 5, 8), None, "interleaved", "bhsd", -16),
    ((2, 2), (2, 5, 8), None, "half", "bshd", 0),  # and not (tokens, heads, r/2)
    ((4, 4), (2, 5, 4, 8), None, "half", "bshd", 3),
    ((4, 2), (2, 5, 2, 10), None, "interleaved", "bshd", 0),
    ((6, 3), (1, 5, 3, 3), None, "interleaved_to_half", "bhsd", 2),
    ((4, 2), (2, 1, 2, 8), None, "half", "hbsd", 0),
    ((8, 4), (2, 5, 4, 1), None, "half", "sbhd", -2),
    ((4, 2), (2, 5, 4, 8), (2, 5, 2, 8), "half", "bshd", 0),
    ((3, 2), (2, 5, 3, 8), (2, 5, 8), "half", "bhsd", 0),
    ((4, 2), (2, 5, 1, 8), (2, 5, 2, 8), "interleaved", "bshd", 1),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_apply_angles_of_every_shape_equals_complex_numbers(backend, case, rng):
    heads, shape, k_shape, layout, axes, offset = case
    pair, angles = [sample(rng, 2, 5, n, 20) for n in heads], 9 * sample(rng, *shape)
    k_angles = 9 * sample(rng, *k_shape) if k_shape else angles
    order = ["bshd".index(name) for name in axes]
    inputs = [*(x.transpose(order).copy() for x in pair), angles, k_angles]
    made = [*map(backend.make, inputs)]
    RoPE().rotate(made[0], axes=axes)  # as in test_frequencies.py

    def rotate(q: Any, k: Any, a: Any, k_a: Any) -> Any:
        options = {"axes": axes, "rotary_offset": offset, "k_angles": k_a if k_shape else None}
        return apply_angles(q, k, a, layout=layout, **options)

    for results in (map(backend.back, backend.run(rotate, *made)), truth(rotate, *inputs)):
        for x, a, y in zip(pair, (angles, k_angles), results, strict=True):
            expected = expect(x, a, layout, offset % 20).transpose(order)
            np.testing.assert_allclose(y, expected, **CLOSE)


@pytest.mark.parametrize("axes", ["bshd", "bhsd"])
def test_tables_of_each_head_rotate_with_the_bits_of_that_head_alone(backend, axes, rng):
    """FoPE mixes cosines of several frequencies by head: they are those of no angle."""
    x, (cos, sin) = sample(rng, 2, 5, 4, 20), sample(rng, 2, 2, 5, 2, 8)
    by_tables = partial(apply_tables, layout="half", rotary_offset=4)
    alone = [truth(by_tables, x[:, :, [h]], cos[:, :, h // 2], sin[:, :, h // 2]) for h in range(4)]
    rope, order = RoPE(layout="half", rotary_dim=16, rotary_offset=4), [*map("bshd".index, axes)]

    def rotate(q: Any, k: Any, *tables: Any) -> Any:
        angles = rope.with_tables(*tables)
        return by_tables(q, *tables, axes=axes), *angles.apply(q, k, axes=axes)

    arrays = *(a.transpose(order).copy() for a in (x, x[:, :, ::2])), cos, sin
    bound = 1e-6 * np.abs(x).max() * np.abs((cos, sin)).max() if backend.ulps else 0
    whole = np.concatenate(alone, axis=2)
    results = backend.run(rotate, *map(backend.make, arrays))
    for y, expected in zip(results, (whole, whole, whole[:, :, ::2]), strict=True):
        result = backend.back(y).transpose(order)
        np.testing.assert_allclose(result, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS if t.name != "numpy-cuda")))
@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 5, 2, 8)], ids=["shared", "of heads"])
@pytest.mark.parametrize("heads", [((), ()), ((4,), (2,))], ids=["one weight", "of heads"])
def test_apply_angles_normalizes_before_it_rotates(backend, shape, heads, rng):
    if heads[0] and backend.path not in (None, "portable", "chunked"):
        pytest.skip("a forced kernel takes one weight for all heads, and says so")
    q, k, angles = sample(rng, 2, 5, 4, 16), sample(rng, 2, 5, 2, 16), sample(rng, *shape)
    weights = [sample(rng, *lead, 16) for lead in heads]

    def rotate(q: Any, k: Any, a: Any, q_weight: Any, k_weight: Any) -> Any:
        return apply_angles(q, k, a, layout="half", norm=QKNorm(q_weight, k_weight, eps=0.5))

    results = backend.run(rotate, *map(backend.make, (q, k, angles, *weights)))
    for x, w, y in zip((q, k), weights, results, strict=True):
        squares = np.square(x, dtype=np.float64)
        normal = x / np.sqrt(squares.mean(-1, keepdims=True) + 0.5) * w
        np.testing.assert_allclose(backend.back(y), expect(normal, angles), rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
@pytest.mark.parametrize("backend", rows(("numpy", "torch", "array-api-strict", "mlx", "dask")))
def test_apply_angles_takes_cosines_of_the_angle_as_given(backend, given, rng):
    """A float64 angle keeps its digits for float32 arrays, where those have float64."""
    angles = (rng.uniform(-1, 1, (1, 40)) * (1e6 if given == "float64" else 1e3)).astype(given)
    if given == "float64" and backend.module == "mlx":
        pytest.skip("mlx computes cos and sin of float64 in float32")
    cos, sin = exact_cos_sin((1.0,), tuple(angles[0].astype(float).tolist()))
    x = np.concatenate([np.ones((1, 1, 40)), np.zeros((1, 1, 40))], -1).astype("f4")
    made = backend.make(angles) if given in backend.floats else angles
    for y in apply_angles(*[backend.make(x)] * 2, made, layout="half"):
        assert np.abs(backend.back(y)[0] - np.concatenate([cos, sin], -1)).max() <= 2.4e-7


def tables_of(q: Any, k: Any, angles: Any) -> tuple[Any, Any]:
    """Rotate by tables that are leaves of their own: the squares keep them apart."""
    return tuple(apply_tables(x, angles, angles * angles, layout="half") for x in (q, k))


BY_ANGLES = partial(apply_angles, layout="half")
of_angles_and_tables = pytest.mark.parametrize("function", [BY_ANGLES, tables_of])
SHAPES = ((1, 2, 4, 5), (1, 2, 2, 5), (1, 2, 2, 2))  # of q, k and angles of each head


# A kernel rotates where angles are constants, and two leaves alone are recorded.
@of_angles_and_tables
@pytest.mark.parametrize(("shape", "recorded"), [((2, 2), 3), (SHAPES[2], 3), (SHAPES[2], 2)])
def test_derivatives_of_given_angles_in_torch_equal_differences(function, shape, recorded, rng):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(rng.standard_normal(s)) for s in (*SHAPES[:2], shape)]
    leaves = [x.requires_grad_(i < recorded) for i, x in enumerate(leaves)]
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_derivatives_of_compiled_apply_angles_equal_differences(rng):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(rng.standard_normal(s)).requires_grad_() for s in SHAPES]
    compiled = torch.compile(BY_ANGLES, fullgraph=True, backend="aot_eager")
    assert torch.autograd.gradcheck(compiled, leaves)


@pytest.mark.slow
@of_angles_and_tables
def test_derivatives_of_given_angles_in_jax_equal_differences(function, rng):
    jax = pytest.importorskip("jax")
    # Older versions have it among what is experimental alone.
    with (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64(True):
        arrays = [jax.numpy.asarray(rng.standard_normal(s)) for s in SHAPES]
        check = importlib.import_module("jax.test_util").check_grads
        check(jax.jit(function), arrays, order=1)
        check(jax.jit(function), arrays, order=2, modes=["rev"])


HOSTS = rows(("numpy-portable", "numpy-chunked", "numpy-native", "torch", "torch-native"))


@pytest.mark.parametrize("backend", HOSTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_apply_angles_takes_strided_arrays_in_place_and_read_only_angles(backend, in_place, rng):
    wide, angles = sample(rng, 2, 5, 6, 40)[..., ::2], 3 * sample(rng, 2, 2, 5, 8).swapaxes(1, 2)
    angles.flags.writeable = False
    x, a = backend.make(wide), angles if backend.module == "numpy" else backend.make(angles)
    q, k = x[:, :, :4], x[:, :, 4:]
    out = (q if in_place else backend.make(np.zeros((2, 5, 4, 20), np.float32)), k)
    for y, given in zip(apply_angles(q, k, a, layout="half", out=out), out, strict=True):
        assert y is given
        before = wide[:, :, 4:] if given is k else wide[:, :, :4]
        np.testing.assert_allclose(backend.back(y), expect(before, angles), **CLOSE)


@pytest.mark.parametrize("lengths", [(0, 5, 4, 2), (2, 0, 4, 2), (2, 5, 0, 0), (2, 5, 0, 2)])
def test_apply_angles_of_empty_axes_gives_empty_results(backend, lengths):
    (*rows, q_heads, heads), f4 = lengths, np.float32
    shapes = (*rows, q_heads, 8), (*rows, heads, 8), (*rows, heads, 4)
    results = backend.run(BY_ANGLES, *(backend.make(np.zeros(s, f4)) for s in shapes))
    assert [backend.back(y).shape for y in results] == [*shapes[:2]]
