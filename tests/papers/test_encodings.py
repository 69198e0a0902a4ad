"""Encodings that RoFormer reviews: against double loops over tokens, at any size and distance."""

import numpy as np
import pytest
from support.encoded import ATOL, LIBRARIES, SCORES, SIZES, VALUES, Case, expected, get_arrays, run
from support.targets import rows

from rope_xp import RopeError

FAR = 2**31 - 1
every_function = pytest.mark.parametrize("name", [*SCORES, *VALUES])
every_score = pytest.mark.parametrize("name", SCORES)
# dask's own reshape takes no empty arrays, and jax compiles each shape.
empty_backends = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))


def make_positions(backend, case):
    both = {"positions": case.positions, "k_positions": case.k_positions}
    return {name: backend.make(values.astype(np.int32)) for name, values in both.items()}


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_function
def test_scores_are_those_of_the_double_loop(name, size, rng):
    case = Case(rng, size, "float32")
    scores = run(name, case)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected(name, case), rtol=0, atol=ATOL)


@every_function
@pytest.mark.parametrize("backend", LIBRARIES)
def test_scores_of_every_library_and_its_positions_are_those_of_the_loop(backend, name, rng):
    case = Case(rng, SIZES[1], "float32")
    scores = run(name, case, backend.make, backend.run, **make_positions(backend, case))
    assert type(scores) is type(backend.make(case.q))
    np.testing.assert_allclose(backend.back(scores), expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
def test_scores_of_other_dtypes_are_rounded_once(backend, name, dtype, rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(rng, SIZES[1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    scores = backend.back(run(name, case, backend.make))
    assert scores.dtype == case.q.dtype
    # 16 bits are rounded once, by half an ulp. In float64 the same 20 roundings of 2**-53, and an
    # angle up to 40 that is rounded by 40 * 2**-52.
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 0.0}[dtype]
    atol = 1e-13 if dtype == "float64" else ATOL
    np.testing.assert_allclose(scores.astype(float), expected(name, case), rtol=rtol, atol=atol)


@every_score
def test_scores_depend_on_distances_alone(name, rng):
    case = Case(rng, SIZES[1], "float64")
    scores, k_positions = run(name, case), case.k_positions + 1000
    moved = run(name, case, positions=case.positions + 1000, k_positions=k_positions)
    np.testing.assert_array_equal(scores, moved)
    differ = (scores != run(name, case, k_positions=k_positions)).any()
    assert differ == (name != "tupe-absolute")  # which has the positions in its arrays alone


@every_score
def test_positions_that_are_left_out_count_from_0(name, rng):
    case = Case(rng, SIZES[4], "float64")
    bare = run(name, case, positions=None, k_positions=None)
    counted = run(name, case, positions=list(range(13)), k_positions=range(13))
    np.testing.assert_array_equal(bare, counted)
    shared = run(name, case, positions=range(13), k_positions=None)
    np.testing.assert_array_equal(bare, shared)
    # One token of a cache; BLAS sums one row in another order than many.
    case.q, case.position_q = case.q[:, -1:], case.position_q[-1:]
    for position in ([12], 12):
        one = run(name, case, positions=position, k_positions=range(13))
        np.testing.assert_allclose(one, bare[..., -1:, :], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("batch", "shape"), [((3,), (1, 4)), ((2, 3), (2, 1, 4)), ((2, 3), (3, 4)), ((3,), (1,))]
)
@every_function
def test_positions_broadcast_over_batches(name, batch, shape, rng):
    case = Case(rng, (batch, 4, 9, 2, 1, 3), "float32")
    positions = rng.integers(0, 40, shape)
    case.positions = np.broadcast_to(positions, (*batch, 4))
    scores, exact = run(name, case, positions=positions), expected(name, case)
    np.testing.assert_allclose(scores, exact, rtol=0, atol=ATOL)


@every_score
@pytest.mark.parametrize("backend", rows(("numpy", "torch", "jax", "dask")))
def test_distances_beyond_int32_do_not_wrap(backend, name, rng):
    case = Case(rng, ((), 6, 6, 2, 1, 3), "float32")
    case.positions = np.array([-FAR, -FAR + 1, -3, 0, 2, FAR])
    case.k_positions = np.array([FAR, 2, 1, -1, -(2**30), -FAR])
    positions = make_positions(backend, case)
    exact = expected(name, case)
    if name == "transformer_xl":
        beyond = np.abs(case.positions[:, None] - case.k_positions) >= FAR
        exact = np.where(beyond, np.nan, exact)
        assert 0 < beyond.sum() < beyond.size
        if backend.name in ("numpy", "torch"):  # whose positions are read, and refused
            with pytest.raises(RopeError, match="between -2147483648 and 2147483648"):
                run(name, case, backend.make, **positions)
            return
    scores = backend.back(run(name, case, backend.make, **positions))
    # Angles up to 2**31 are good to 4e-7 in place of some 2**-24, in 6 columns.
    np.testing.assert_allclose(scores, exact, rtol=0, atol=2 * ATOL)


def test_base_of_transformer_xl_is_used(rng):
    case = Case(rng, ((2,), 4, 5, 2, 1, 3), "float32")
    scores = run("transformer_xl", case, base=50.0)
    exact = expected("transformer_xl", case, base=50.0)
    np.testing.assert_allclose(scores, exact, rtol=0, atol=ATOL)
    assert np.abs(scores - run("transformer_xl", case)).max() > 0.01


@pytest.mark.parametrize(
    "size",
    [((2,), 0, 0, 2, 1, 3), ((2,), 0, 3, 2, 1, 3), ((), 3, 0, 2, 2, 3), ((0,), 2, 3, 2, 1, 3)],
    ids=str,
)
@every_function
@empty_backends
def test_encodings_without_tokens_are_empty(backend, name, size, rng):
    case = Case(rng, size, "float32")
    scores, exact = run(name, case, backend.make), expected(name, case)
    np.testing.assert_array_equal(backend.back(scores), exact.astype(np.float32), strict=True)


@every_score
def test_gradients_in_torch_are_finite_differences(name, rng):
    torch = pytest.importorskip("torch")
    case = Case(rng, ((1,), 2, 3, 2, 1, 2), "float64")
    arrays = [torch.tensor(x, requires_grad=True) for x in get_arrays(name, case)]
    options = {"positions": case.positions, "k_positions": case.k_positions, **SCORES[name][2]}
    assert torch.autograd.gradcheck(lambda *a: SCORES[name][0](*a, **options), arrays)
