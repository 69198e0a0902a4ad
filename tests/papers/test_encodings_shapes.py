"""Encodings of shapes at the edge: shared positions, no tokens, the farthest distances, devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.encoded import ATOL, DIM, SCALE, SCORES, Case, expected, run
from support.targets import Target, rows

from rope_xp import RopeError
from rope_xp.papers import encodings

FAR = 2**31 - 1
every_score = pytest.mark.parametrize("name", SCORES)
# dask's own reshape takes no empty arrays, and jax compiles each shape.
takes_nothing = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))


# --- positions that a batch shares ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "shape"), [((3,), (1, 4)), ((2, 3), (2, 1, 4)), ((2, 3), (3, 4)), ((3,), (1,))]
)
@every_score
def test_positions_broadcast(name: str, batch: Any, shape: Any, rng: np.random.Generator) -> None:
    case = Case(rng, (batch, 4, 9, 2, 1, 3), "float32")
    at = rng.integers(0, 40, shape)
    case.at = np.broadcast_to(at, (*batch, 4))
    found = run(name, case, positions=at)
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


def test_positions_of_values_broadcast(rng: np.random.Generator) -> None:
    case = Case(rng, ((3,), 4, 9, 2, 1, 3), "float64")
    given = (case.weights, case.k, case.shared)
    at, k_at = case.at[:1], case.k_at[None]
    found = encodings.shaw_values(*given, positions=at, k_positions=k_at)
    for i in range(3):
        one = (case.weights[i], case.k[i], case.shared)
        alone = encodings.shaw_values(*one, positions=at[0], k_positions=k_at[0])
        # BLAS may sum a batch in another order.
        np.testing.assert_allclose(found[i], alone, rtol=0, atol=1e-14)


def test_one_number_is_the_position_of_one_token(rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 1, 9, 2, 1, 3), "float64")
    one, listed = (run("shaw", case, positions=at) for at in (7, [7]))
    np.testing.assert_array_equal(one, listed)
    many = Case(rng, ((2,), 4, 9, 2, 1, 3), "float64")
    with pytest.raises(RopeError, match=r"positions has shape \(\); it must be \(tokens,\) = \(4,"):
        run("shaw", many, positions=7)


# --- nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [((2,), 0, 0, 2, 1, 3), ((2,), 0, 3, 2, 1, 3), ((), 3, 0, 2, 2, 3), ((0,), 2, 3, 2, 1, 3)],
    ids=str,
)
@every_score
@takes_nothing
def test_no_tokens(backend: Target, name: str, size: Any, rng: np.random.Generator) -> None:
    case = Case(rng, size, "float32")
    found = backend.back(run(name, case, backend.make))
    assert found.shape == expected(name, case).shape
    assert found.dtype == np.float32


@every_score
def test_no_heads(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 3, 5, 2, 1, 3), "float64")
    for field in ("q", "u", "v", "w", "bias", "position_q", "position_k", "factors_by_head"):
        value = getattr(case, field)
        axis = {"bias": -1, "factors_by_head": -1, "u": 0, "v": 0, "w": 0}.get(field, -2)
        setattr(case, field, np.take(value, [], axis=axis))
    case.relative_q, case.relative_k = case.relative_q[:, :0], case.relative_k[:, :0]
    assert run(name, case).shape == (2, 0, 3, 5)


@takes_nothing
def test_values_of_no_keys_are_zero(backend: Target, rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 3, 0, 4, 2, 5), "float32")
    arrays = map(backend.make, (case.weights, case.k, case.shared))
    found = backend.back(encodings.shaw_values(*arrays, positions=case.at, k_positions=[]))
    np.testing.assert_array_equal(found, np.zeros((2, 3, 4, 5), np.float32))


# --- the farthest distances ----------------------------------------------------------------------


@pytest.mark.covering
@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax", "dask")))
def test_distances_do_not_wrap(backend: Target, name: str, rng: np.random.Generator) -> None:
    case = Case(rng, ((), 6, 6, 2, 1, 3), "float32")
    case.at = np.array([-FAR, -FAR + 1, -3, 0, 2, FAR])
    case.k_at = np.array([FAR, 2, 1, -1, -(2**30), -FAR])
    at, k_at = (backend.make(x.astype(np.int32)) for x in (case.at, case.k_at))
    wanted = expected(name, case)
    if name == "transformer_xl":
        beyond = np.abs(case.at[:, None] - case.k_at) >= FAR
        wanted = np.where(beyond, np.nan, wanted)
        assert 0 < beyond.sum() < beyond.size
        if backend.name in ("numpy", "torch"):  # whose positions are read, and refused
            with pytest.raises(RopeError, match="of modulus below 2147483648"):
                run(name, case, backend.make, positions=at, k_positions=k_at)
            return
    found = backend.back(run(name, case, backend.make, positions=at, k_positions=k_at))
    # Angles up to 2**31 are good to 4e-7 in place of some 2**-24, in 6 columns.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * ATOL)


# --- what is refused, and options ----------------------------------------------------------------


@pytest.mark.parametrize("at", range(3))
def test_devices_are_not_mixed(at: int) -> None:
    xp = pytest.importorskip("array_api_strict")
    here, there = xp.Device("CPU_DEVICE"), xp.Device("device1")

    def arrays(*shapes: tuple[int, ...]) -> list[Any]:
        return [
            xp.zeros(shape, dtype=xp.float32, device=there if i == at else here)
            for i, shape in enumerate(shapes)
        ]

    second = {0: "k", 1: "k", 2: "relative_keys"}[at]
    with pytest.raises(RopeError, match=f"q is on .* and {second} on .*; move one of them"):
        encodings.shaw(*arrays((5, 2, 3), (5, 2, 3), (7, 3)))
    second = {0: "v", 1: "v", 2: "relative_values"}[at]
    with pytest.raises(RopeError, match=f"weights is on .* and {second} on .*; move one"):
        encodings.shaw_values(*arrays((2, 5, 5), (5, 2, 3), (7, 3)))


def test_positions_lie_where_the_arrays_do() -> None:
    xp = pytest.importorskip("array_api_strict")
    q, table = xp.zeros((5, 2, 3), dtype=xp.float32), xp.zeros((7, 3), dtype=xp.float32)
    at = xp.arange(5, device=xp.Device("device1"))
    with pytest.raises(RopeError, match=r"is on .* and positions on .*device1.*; move one of them"):
        encodings.shaw(q, q, table, positions=at)


W, V, TABLE = np.zeros((2, 4, 5, 6)), np.zeros((2, 6, 2, 3)), np.zeros((7, 3))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda f: f(W[:, :3], V, TABLE), RopeError, r"weights has shape \(2, 3, 5, 6\)"),
        (lambda f: f(W[:1], V, TABLE), RopeError, r"here \(2, 2 or a multiple, any, 6\)"),
        (lambda f: f(W[0], V, TABLE), RopeError, r"weights has shape \(4, 5, 6\)"),
        (lambda f: f(W[0, 0], V[0], TABLE), RopeError, r"here \(2 or a multiple, any, 6\)"),
        (lambda f: f(W, V[0, 0], TABLE), RopeError, r"v has shape \(2, 3\); it needs"),
        (lambda f: f(W, V[..., :0], TABLE), RopeError, "head_dim, must not be empty"),
        (lambda f: f(W, V[:, :, :0], TABLE), RopeError, "here .*0 or a multiple"),
        (lambda f: f(W[..., :5], V[:, :5], TABLE[:, :2]), RopeError, r"_values has shape \(7, 2\)"),
        (lambda f: f(W, V, TABLE), RopeError, "give positions and k_positions"),
        (lambda f: f(W, V.astype("f4"), TABLE), TypeError, "weights is float64 and v float32"),
        (lambda f: f(W > 0, V, TABLE), TypeError, "weights is .* bool; it must hold .*Convert it"),
    ],
)
def test_values_that_are_refused(
    call: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(encodings.shaw_values)


def test_base_of_transformer_xl(rng: np.random.Generator) -> None:
    case = Case(rng, ((2,), 4, 5, 2, 1, 3), "float32")
    found = run("transformer_xl", case, base=50.0)
    wide = {name: getattr(case, name).astype(np.float64) for name in ("q", "k", "u", "v", "w")}
    angles = (case.at[..., None] - case.k_at)[..., None] * 50.0 ** (-np.arange(0, DIM, 2) / DIM)
    wave = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(*angles.shape[:-1], DIM)
    content = np.einsum("bihd,bjd->bhij", wide["q"] + wide["u"], wide["k"][:, :, 0])
    place = np.einsum("bihd,hdp,bijp->bhij", wide["q"] + wide["v"], wide["w"], wave)
    np.testing.assert_allclose(found, SCALE * (content + place), rtol=0, atol=ATOL)
    assert np.abs(found - run("transformer_xl", case)).max() > 0.01
