"""Encodings that RoFormer reviews: against double loops over tokens, and under every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.encoded import (
    ATOL,
    LIBRARIES,
    SCALE,
    SCORES,
    SIZES,
    Case,
    clip,
    double_loop,
    expected,
    run,
)
from support.targets import Target, rows

from rope_xp.papers import encodings


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, size: Any, rng: np.random.Generator) -> None:
    case = Case(rng, size, "float32")
    found = run(name, case)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))
def test_scores_of_float64(backend: Target, name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    found = backend.back(run(name, case, backend.make))
    assert found.dtype == np.float64
    # The same 20 roundings of 2**-53, and an angle up to 40 that is rounded by 40 * 2**-52.
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=1e-13)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("torch", "jax")))
def test_16_bit_scores_are_rounded_once(
    backend: Target, name: str, dtype: str, rng: np.random.Generator
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(rng, SIZES[1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = backend.back(run(name, case, backend.make))
    assert found.dtype == case.q.dtype
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11  # half an ulp, relative
    np.testing.assert_allclose(found.astype(float), expected(name, case), rtol=step, atol=ATOL)


@pytest.mark.covering
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_values_of_shaw(backend: Target, size: Any, rng: np.random.Generator) -> None:
    c = Case(rng, size, "float32")
    found = encodings.shaw_values(
        *map(backend.make, (c.weights, c.k, c.shared)), positions=c.at, k_positions=c.k_at
    )
    out = np.zeros((*c.batch, c.n, c.heads, c.k.shape[-1]))
    group = c.heads // c.k.shape[-2]
    for *b, i, h in np.ndindex(*out.shape[:-1]):
        for j in range(c.m):
            value = c.k[(*b, j, h // group)].astype(np.float64)
            r = int(c.at[(*b, i)] - c.k_at[j])
            out[(*b, i, h)] += c.weights[(*b, h, i, j)] * (value + c.shared[clip(r)])
    np.testing.assert_allclose(backend.back(found), out, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_only_distances_count(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    moved = run(name, case, positions=case.at + 1000, k_positions=case.k_at + 1000)
    np.testing.assert_array_equal(run(name, case), moved)


@pytest.mark.parametrize("name", SCORES)
def test_far_keys_are_told_from_near_ones(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    differ = (run(name, case) != run(name, case, k_positions=case.k_at + 1000)).any()
    assert differ == (name != "tupe-absolute")  # which has the positions in its arrays alone


@pytest.mark.parametrize("name", SCORES)
def test_positions_count_from_0(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[4], "float64")
    bare = run(name, case, positions=None, k_positions=None)
    counted = run(name, case, positions=list(range(13)), k_positions=range(13))
    np.testing.assert_array_equal(bare, counted)
    shared = run(name, case, positions=range(13), k_positions=None)
    np.testing.assert_array_equal(bare, shared)


@pytest.mark.covering
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_every_library_and_its_positions(
    backend: Target, name: str, rng: np.random.Generator
) -> None:
    case = Case(rng, SIZES[1], "float32")
    at, k_at = (backend.make(x.astype(np.int32)) for x in (case.at, case.k_at))
    found = run(name, case, backend.make, positions=at, k_positions=k_at)
    assert type(found) is type(backend.make(case.q))
    np.testing.assert_allclose(backend.back(found), expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_one_token_of_a_cache(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[4], "float64")
    last = Case(rng, SIZES[4], "float64")
    last.__dict__.update(case.__dict__)
    whole = run(name, case, positions=None, k_positions=None)
    last.q, last.position_q = case.q[:, -1:], case.position_q[-1:]
    one = run(name, last, positions=[12], k_positions=range(13))
    # BLAS sums one row in another order than many.
    np.testing.assert_allclose(one, whole[..., -1:, :], rtol=0, atol=1e-14)


def test_zero_parameters_leave_the_plain_scores(rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[0], "float64")
    plain = double_loop(case, lambda q, k, *_: float(SCALE * (q @ k)))
    for array in vars(case).values():
        if isinstance(array, np.ndarray) and array.dtype == np.float64:
            array[...] *= array is case.q or array is case.k
    case.factors += 1.0
    case.factors_by_head += 1.0
    for name in SCORES:
        np.testing.assert_allclose(run(name, case), plain, rtol=0, atol=1e-14)  # 7 products


@pytest.mark.parametrize("name", SCORES)
def test_gradients_in_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    case = Case(rng, ((1,), 2, 3, 2, 1, 2), "float64")
    function, parameters, own = SCORES[name]
    arrays = [torch.tensor(x, requires_grad=True) for x in (case.q, case.k, *parameters(case))]
    where = {"positions": case.at, "k_positions": case.k_at, **own}
    assert torch.autograd.gradcheck(lambda *a: function(*a, **where), arrays)


@pytest.mark.parametrize("name", SCORES)
def test_under_jit(name: str, rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    case = Case(rng, SIZES[3], "float32")
    function, parameters, own = SCORES[name]
    where = {"positions": case.at, "k_positions": case.k_at, "scale": SCALE, **own}
    jitted = jax.jit(lambda *a: function(*a, **where))
    found = jitted(*map(jax.numpy.asarray, (case.q, case.k, *parameters(case))))
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_compiled_by_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    case = Case(rng, SIZES[4], "float32")
    function, parameters, own = SCORES[name]
    arrays = [torch.asarray(x) for x in (case.q, case.k, *parameters(case))]
    compiled = torch.compile(lambda *a: function(*a, **own), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arrays), function(*arrays, **own), rtol=0, atol=0)
