"""Cumulative angles: sums of steps without whole turns, next to sums of integers of any length."""

from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import tau
from typing import Any

import mpmath
import numpy as np
import pytest
from support.bits import same
from support.targets import Target, numpy_dtype, rows

import rope_xp
from rope_xp import RopeError

NAMES = ("numpy", "array-api-strict", "torch", "jax", "mlx")
EAGER = pytest.mark.parametrize("backend", rows(NAMES))
LIBRARIES = pytest.mark.parametrize("backend", rows((*NAMES, "torch-compile", "jax-jit", "dask")))
# Rounding pi to float32, and the words that libraries without float64 leave out.
BOUND = {"float32": 2.0**-23 + 1.6e-9, "float64": 2.0**-50}
BITS = 256


def count_turns(steps: np.ndarray) -> np.ndarray:
    """Return steps in turns, as integers with a turn of 2**BITS: no rounding that tests see."""
    with mpmath.workprec(2 * BITS):
        radian = int(mpmath.mpf(2) ** BITS / (2 * mpmath.pi))
    return np.vectorize(lambda x: int(Fraction(float(x)) * radian), otypes=[object])(steps)


def to_radians(total: np.ndarray) -> np.ndarray:
    half = 1 << (BITS - 1)
    wrap = np.vectorize(lambda n: float(Fraction((n + half) % (2 * half) - half, 2 * half)))
    return wrap(total) * tau


def distance(angles: Any, expected: np.ndarray) -> float:
    difference = np.asarray(angles, np.float64) - expected
    return float(np.abs(difference - tau * np.round(difference / tau)).max())


def draw(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Steps between 1e-3 and 6e4 radians, of both signs."""
    rng = np.random.default_rng(7)
    steps = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 4.2, shape)
    return np.clip(steps, -65280, 65280).astype(numpy_dtype(dtype))


def run(backend: Target, steps: np.ndarray, axis: int = 1, **options: Any) -> Any:
    return backend.run(lambda x: rope_xp.cumulative_angles(x, axis, **options), backend.make(steps))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@LIBRARIES
def test_sums_are_exact_in_every_library(backend, dtype):
    steps, single = draw((2, 300, 3), dtype), dtype.replace("bfloat16", "float32")
    angles = backend.back(run(backend, steps))
    assert angles.dtype == single
    assert distance(angles, to_radians(np.cumsum(count_turns(steps), 1))) <= BOUND[single]
    if "float64" in backend.floats:  # as jax has it not here, nor mlx before 0.32.4
        np.testing.assert_array_equal(angles, rope_xp.cumulative_angles(steps, 1))


def test_a_million_equal_steps_stay_within_the_bound():
    tokens, step = 1_000_000, np.array([3.0009765625])
    angles = rope_xp.cumulative_angles(np.full((tokens, 1), step), 0)
    last = to_radians(count_turns(step) * tokens)
    assert distance(angles[-1], last) <= BOUND["float64"] + tokens * 2.0**-61 * tau


@pytest.mark.parametrize("dtype", BOUND)
def test_states_have_the_error_of_a_step_that_is_promised(dtype):
    steps = draw((20_000,), dtype)
    exact, half = count_turns(steps), 2 ** (BITS - 1)
    _, states = rope_xp.cumulative_angles(steps[:, None], 1, return_state=True)
    errors = [int(n) * 2 ** (BITS - 64) - m for n, m in zip(states[:, 0], exact, strict=True)]
    assert max(abs((e + half) % (2 * half) - half) for e in errors) <= 2 ** (BITS - 61)


@EAGER
@pytest.mark.parametrize("cuts", [(17, 18, 250), tuple(range(1, 300))])
def test_chunks_have_the_bits_of_the_whole(backend, cuts):
    steps, state, parts = draw((2, 300, 3)), None, []
    cuts = (150,) if backend.compiles else cuts  # which compiles each length anew
    whole, last = run(backend, steps, return_state=True)
    for first, end in pairwise((0, *cuts, 300)):
        part, state = run(backend, steps[:, first:end], start=state, return_state=True)
        parts.append(backend.back(part))
    np.testing.assert_array_equal(np.concatenate(parts, 1), backend.back(whole))
    np.testing.assert_array_equal(backend.back(state), backend.back(last))


@pytest.mark.parametrize("ends", [(0, 17, 17, 250, 300), (0, 0, 299, 300)])
@LIBRARIES
def test_packed_sequences_have_the_bits_of_each_alone(backend, ends):
    steps = draw((2, 300, 3))
    packed, states = run(backend, steps, cu_seqlens=np.array(ends, np.int32), return_state=True)
    for i, (first, end) in enumerate(pairwise(ends)):
        state = backend.back(states)[:, i : i + 1]
        if first == end:
            assert not state.any()
            continue
        alone, last = run(backend, steps[:, first:end], return_state=True)
        np.testing.assert_array_equal(backend.back(packed)[:, first:end], backend.back(alone))
        np.testing.assert_array_equal(state, backend.back(last))
        if backend.compiles:
            break


@EAGER
def test_packed_chunks_start_from_the_states_of_their_sequences(backend):
    steps = draw((40, 2))
    _, states = run(backend, steps[:20], 0, cu_seqlens=[0, 5, 20], return_state=True)
    rest = run(backend, steps[20:], 0, start=states, cu_seqlens=[0, 15, 20])
    order = np.r_[0:5, 20:35, 5:20, 35:40]
    wholes = backend.back(run(backend, steps[order], 0, cu_seqlens=[0, 20, 40]))
    np.testing.assert_array_equal(backend.back(rest), np.r_[wholes[5:20], wholes[35:]])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_sums_in_any_order_of_memory_have_the_bits_of_plain_operations(library, dtype, axes):
    """Which array_api_strict runs, for which there is no native function."""
    put, plain = map(pytest.importorskip, (library, "array_api_strict"))
    view = draw((3, 5000, 16), dtype).transpose(axes)
    for options in ({}, {"cu_seqlens": [0, 2, 2, 5000]}):
        results = []
        for xp in (put, plain):
            steps = xp.asarray(view), axes.index(1) - 3
            call = partial(rope_xp.cumulative_angles, *steps, return_state=True, **options)
            results.append(tuple(map(np.asarray, call(start=call()[1]))))
        same(*results)


@pytest.mark.parametrize("ends", [(0, 50), (0, 20, 50)])
@pytest.mark.parametrize("name", ["torch", "torch-compile", "jax", "mlx"])
def test_derivative_is_a_reversed_sum_within_each_sequence(name, ends, rng):
    library = pytest.importorskip({"mlx": "mlx.core"}.get(name, name.partition("-")[0]))
    steps, weights = draw((50, 3)), rng.standard_normal((50, 3), np.float32)
    parts = np.split(weights.astype(np.float64), ends[1:-1])
    expected = np.concatenate([np.cumsum(part[::-1], 0)[::-1] for part in parts])
    options = {} if len(ends) == 2 else {"cu_seqlens": np.array(ends, np.int32)}

    def loss(x: Any, w: Any) -> Any:
        return (rope_xp.cumulative_angles(x, 0, **options) * w).sum()

    if name == "jax":
        gradient = library.jit(library.grad(loss))(steps, weights)
    elif name == "mlx":
        gradient = library.grad(loss)(library.array(steps), library.array(weights))
    else:
        x, function = library.tensor(steps, requires_grad=True), loss
        if name == "torch-compile":
            function = library.compile(loss, fullgraph=True, backend="aot_eager")
        function(x, library.tensor(weights)).backward()
        gradient = x.grad
    # A sum of 50 floats, each rounded.
    np.testing.assert_allclose(np.asarray(gradient), expected, rtol=0, atol=50 * 2.0**-20)


def test_second_derivatives_and_transforms_of_torch_hold():
    torch = pytest.importorskip("torch")
    steps = torch.tensor(draw((7, 2), "float64") / 1e4, requires_grad=True)

    def rotate(x: Any) -> Any:
        return rope_xp.cumulative_angles(x, 0).sin()

    assert torch.autograd.gradcheck(rotate, steps)
    assert torch.autograd.gradgradcheck(rotate, steps)
    jacobian = torch.func.jacrev(rotate)(steps.detach())
    torch.testing.assert_close(torch.func.jacfwd(rotate)(steps.detach()), jacobian)
    many = torch.stack([steps.detach(), 2 * steps.detach()])
    each = torch.stack([*map(rotate, many)])
    torch.testing.assert_close(torch.func.vmap(rotate)(many), each)


def test_forward_mode_and_vmap_of_jax_hold():
    jax = pytest.importorskip("jax")
    steps = draw((4, 7, 2)) / 1e4

    @jax.jit  # else each operation would be compiled by itself
    def transform(steps):
        _, tangent = jax.jvp(lambda x: rope_xp.cumulative_angles(x, 1), (steps,), (steps,))
        return tangent, jax.vmap(lambda x: rope_xp.cumulative_angles(x, 0))(steps)

    tangent, each = transform(steps)
    np.testing.assert_allclose(tangent, np.cumsum(steps, 1), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(each, rope_xp.cumulative_angles(jax.numpy.asarray(steps), 1))


@LIBRARIES
@pytest.mark.parametrize("bad", [np.nan, np.inf, -(2.0**16)])
def test_a_step_that_is_no_angle_is_an_error_or_makes_its_sums_nan(backend, bad):
    steps = np.ones((2, 30, 1), np.float32)
    steps[0, 11] = bad
    if backend.name in ("numpy", "torch"):
        with pytest.raises(RopeError, match="steps must be finite, and below 65536 radians"):
            run(backend, steps)
        return
    angles = backend.back(run(backend, steps))
    assert np.isnan(angles[0]).all()
    assert not np.isnan(angles[1]).any()
