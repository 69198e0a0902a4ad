"""Encodings at the edge: shared positions, no tokens, the farthest distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import encoded
from support.encoded import ATOL, SCORES, Case, expected, expected_values, run
from support.targets import Target, rows

from rope_xp import RopeError
from rope_xp.papers import encodings

FAR = 2**31 - 1
every_score = pytest.mark.parametrize("name", SCORES)
# dask's own reshape takes no empty arrays, and jax compiles each shape.
empty_backends = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))


# --- positions that a batch shares ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "shape"), [((3,), (1, 4)), ((2, 3), (2, 1, 4)), ((2, 3), (3, 4)), ((3,), (1,))]
)
@every_score
def test_positions_broadcast(name: str, batch: Any, shape: Any, rng: np.random.Generator) -> None:
    case = Case(rng, (batch, 4, 9, 2, 1, 3), "float32")
    positions = rng.integers(0, 40, shape)
    case.positions = np.broadcast_to(positions, (*batch, 4))
    scores = run(name, case, positions=positions)
    np.testing.assert_allclose(scores, expected(name, case), rtol=0, atol=ATOL)


def test_positions_of_values_broadcast(rng: np.random.Generator) -> None:
    case = Case(rng, ((3,), 4, 9, 2, 1, 3), "float64")
    shared, arrays = case.positions[:1], (case.weights, case.k, case.shared)
    case.positions = np.broadcast_to(shared, (3, 4))
    k_positions = case.k_positions[None]
    values = encodings.shaw_values(*arrays, positions=shared, k_positions=k_positions)
    np.testing.assert_allclose(values, expected_values(case), rtol=0, atol=1e-13)


def test_one_number_is_the_position_of_one_token(rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 1, 9, 2, 1, 3), "float64")
    one, listed = (run("shaw", case, positions=positions) for positions in (7, [7]))
    np.testing.assert_array_equal(one, listed)


# --- nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [((2,), 0, 0, 2, 1, 3), ((2,), 0, 3, 2, 1, 3), ((), 3, 0, 2, 2, 3), ((0,), 2, 3, 2, 1, 3)],
    ids=str,
)
@every_score
@empty_backends
def test_no_tokens(backend: Target, name: str, size: Any, rng: np.random.Generator) -> None:
    case = Case(rng, size, "float32")
    scores = backend.back(run(name, case, backend.make))
    assert scores.shape == expected(name, case).shape
    assert scores.dtype == np.float32


@every_score
def test_no_heads(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 3, 5, 2, 1, 3), "float64")
    for field in ("q", "u", "v", "w", "bias", "position_q", "position_k", "factors_by_head"):
        value = getattr(case, field)
        axis = {"bias": -1, "factors_by_head": -1, "u": 0, "v": 0, "w": 0}.get(field, -2)
        setattr(case, field, np.take(value, [], axis=axis))
    case.relative_q, case.relative_k = case.relative_q[:, :0], case.relative_k[:, :0]
    assert run(name, case).shape == (2, 0, 3, 5)


@empty_backends
def test_values_of_no_keys_are_zero(backend: Target, rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 3, 0, 4, 2, 5), "float32")
    arrays = map(backend.make, (case.weights, case.k, case.shared))
    scores = backend.back(encodings.shaw_values(*arrays, positions=case.positions, k_positions=[]))
    np.testing.assert_array_equal(scores, np.zeros((2, 3, 4, 5), np.float32))


# --- the farthest distances ----------------------------------------------------------------------


@pytest.mark.covering
@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax", "dask")))
def test_distances_do_not_wrap(backend: Target, name: str, rng: np.random.Generator) -> None:
    case = Case(rng, ((), 6, 6, 2, 1, 3), "float32")
    case.positions = np.array([-FAR, -FAR + 1, -3, 0, 2, FAR])
    case.k_positions = np.array([FAR, 2, 1, -1, -(2**30), -FAR])
    positions = {
        name: backend.make(getattr(case, name).astype(np.int32))
        for name in ("positions", "k_positions")
    }
    exact = expected(name, case)
    if name == "transformer_xl":
        beyond = np.abs(case.positions[:, None] - case.k_positions) >= FAR
        exact = np.where(beyond, np.nan, exact)
        assert 0 < beyond.sum() < beyond.size
        if backend.name in ("numpy", "torch"):  # whose positions are read, and refused
            with pytest.raises(RopeError, match="of modulus below 2147483648"):
                run(name, case, backend.make, **positions)
            return
    scores = backend.back(run(name, case, backend.make, **positions))
    # Angles up to 2**31 are good to 4e-7 in place of some 2**-24, in 6 columns.
    np.testing.assert_allclose(scores, exact, rtol=0, atol=2 * ATOL)


def test_base_of_transformer_xl(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(rng, ((2,), 4, 5, 2, 1, 3), "float32")
    monkeypatch.setattr(encoded, "BASE", 50.0)
    scores = run("transformer_xl", case, base=50.0)
    np.testing.assert_allclose(scores, expected("transformer_xl", case), rtol=0, atol=ATOL)
    assert np.abs(scores - run("transformer_xl", case)).max() > 0.01
