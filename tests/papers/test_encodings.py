"""Encodings that RoFormer reviews: against double loops over tokens, and under every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.encoded import (
    ATOL,
    LIBRARIES,
    SCORES,
    SIZES,
    Case,
    expected,
    expected_values,
    run,
)
from support.exhaustive import exhaustive
from support.targets import Target, rows

from rope_xp.papers import encodings

every_score = pytest.mark.parametrize("name", SCORES)


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_score
def test_scores(name: str, size: Any, rng: np.random.Generator) -> None:
    case = Case(rng, size, "float32")
    scores = run(name, case)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected(name, case), rtol=0, atol=ATOL)


@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))
def test_scores_of_float64(backend: Target, name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    scores = backend.back(run(name, case, backend.make))
    assert scores.dtype == np.float64
    # The same 20 roundings of 2**-53, and an angle up to 40 that is rounded by 40 * 2**-52.
    np.testing.assert_allclose(scores, expected(name, case), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
def test_16_bit_scores_are_rounded_once(
    backend: Target, name: str, dtype: str, rng: np.random.Generator
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(rng, SIZES[1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    scores = backend.back(run(name, case, backend.make))
    assert scores.dtype == case.q.dtype
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11  # half an ulp, relative
    np.testing.assert_allclose(scores.astype(float), expected(name, case), rtol=step, atol=ATOL)


@pytest.mark.covering
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_values_of_shaw(backend: Target, size: Any, rng: np.random.Generator) -> None:
    c = Case(rng, size, "float32")
    arrays = map(backend.make, (c.weights, c.k, c.shared))
    positions = {"positions": c.positions, "k_positions": c.k_positions}
    values = backend.run(lambda *a: encodings.shaw_values(*a, **positions), *arrays)
    np.testing.assert_allclose(backend.back(values), expected_values(c), rtol=0, atol=ATOL)


@every_score
def test_distances_count_alone(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    scores, k_positions = run(name, case), case.k_positions + 1000
    moved = run(name, case, positions=case.positions + 1000, k_positions=k_positions)
    np.testing.assert_array_equal(scores, moved)
    differ = (scores != run(name, case, k_positions=k_positions)).any()
    assert differ == (name != "tupe-absolute")  # which has the positions in its arrays alone


@every_score
def test_positions_count_from_0(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[4], "float64")
    bare = run(name, case, positions=None, k_positions=None)
    counted = run(name, case, positions=list(range(13)), k_positions=range(13))
    np.testing.assert_array_equal(bare, counted)
    shared = run(name, case, positions=range(13), k_positions=None)
    np.testing.assert_array_equal(bare, shared)
    # One token of a cache; BLAS sums one row in another order than many.
    case.q, case.position_q = case.q[:, -1:], case.position_q[-1:]
    one = run(name, case, positions=[12], k_positions=range(13))
    np.testing.assert_allclose(one, bare[..., -1:, :], rtol=0, atol=1e-14)


@pytest.mark.covering
@every_score
@pytest.mark.parametrize("backend", LIBRARIES)
def test_every_library_and_its_positions(
    backend: Target, name: str, rng: np.random.Generator
) -> None:
    case = Case(rng, SIZES[1], "float32")
    positions = {
        argument: backend.make(getattr(case, argument).astype(np.int32))
        for argument in ("positions", "k_positions")
    }
    scores = run(name, case, backend.make, backend.run, **positions)
    assert type(scores) is type(backend.make(case.q))
    np.testing.assert_allclose(backend.back(scores), expected(name, case), rtol=0, atol=ATOL)


@every_score
def test_gradients_in_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    case = Case(rng, ((1,), 2, 3, 2, 1, 2), "float64")
    function, parameters, settings = SCORES[name]
    arrays = [torch.tensor(x, requires_grad=True) for x in (case.q, case.k, *parameters(case))]
    options = {"positions": case.positions, "k_positions": case.k_positions, **settings}
    assert torch.autograd.gradcheck(lambda *a: function(*a, **options), arrays)


# The others make the same calls, with fewer arrays.
@pytest.mark.parametrize(
    "name", [x if x in ("transformer_xl", "tupe", "deberta") else exhaustive(x) for x in SCORES]
)
def test_compiled_by_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    case = Case(rng, SIZES[4], "float32")
    function, parameters, settings = SCORES[name]
    arrays = [torch.asarray(x) for x in (case.q, case.k, *parameters(case))]
    compiled = torch.compile(lambda *a: function(*a, **settings), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arrays), function(*arrays, **settings), rtol=0, atol=0)
