"""A call of a kind that was run before does what the long way does, errors among them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.bits import sample
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError, scaling
from rope_xp._arguments import parse
from rope_xp._dispatch import call_cache

KINDS = call_cache.CALLS
HALF = RoPE(layout="half")


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """Have a kernel, which binds, and no kinds of other tests."""
    pytest.importorskip("llvmlite")
    KINDS.cache_clear()
    for dtype in (np.float32, np.float64):
        with rope_xp.use_path("llvm"):
            HALF.rotate(np.ones((3, 2, 8), dtype))
    yield
    KINDS.cache_clear()


def putting(library: str) -> Callable[[np.ndarray], Any]:
    if library == "numpy":
        return np.array
    if library == "jax":
        make: Callable[[np.ndarray], Any] = pytest.importorskip("jax.numpy").asarray
        return make
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


@pytest.fixture(params=["numpy", "torch"])
def put(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
    return putting(request.param)


@pytest.fixture(params=["numpy", "torch", "jax"])
def put_any(request: pytest.FixtureRequest) -> Callable[[np.ndarray], Any]:
    return putting(request.param)


def twice(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what a call returns once it is known, which may not be read again."""
    call()  # of a class of arrays that may be new
    call()
    with monkeypatch.context() as patch:
        for name in ("apply", "rotate"):
            patch.setattr(parse, name, lambda *_: pytest.fail("it went the long way"))
        return call()


ROPES = {
    "half": HALF,
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=2),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(8.0, 4096)),
    "negative offset": RoPE(layout="half", rotary_dim=4, rotary_offset=-4),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
def test_same_bits_as_the_slow_path(
    put: Callable[[np.ndarray], Any],
    axes: str,
    rope: str,
    dtype: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k = sample(rng, 2, 2, 2, 8, dtype=dtype), sample(rng, 2, 2, 2, 8, dtype=dtype)
    chosen = ROPES[rope]
    for positions in (
        *(None, [5, 1_000_000], np.array([7, -9]), np.array([7, -9], np.int32)),
        np.array([[1, 2], [3, 4]]),
    ):
        given = put(positions) if isinstance(positions, np.ndarray) else positions
        expected = truth(chosen.apply, q, k, positions, axes=axes)
        got = twice(lambda g=given: chosen.apply(put(q), put(k), g, axes=axes), monkeypatch)
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(g), e)
        back = twice(lambda g=given: chosen.unrotate(put(q), g, axes=axes), monkeypatch)
        np.testing.assert_array_equal(
            np.asarray(back), truth(chosen.unrotate, q, positions, axes=axes)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fractions_and_components(
    put: Callable[[np.ndarray], Any],
    dtype: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, one = sample(rng, 2, 3, 2, 8, dtype=dtype), sample(rng, 1, 1, 2, 8, dtype=dtype)
    mixed = RoPE(layout="half", position_axes=(0, 1, 1, 0))
    for rope, some, first in (
        (HALF, (3,), (1,)),
        (mixed, (2, 3), (2, 1)),
        (mixed, (2, 2, 3), (2,)),
    ):
        for array, shape in ((x, some), (one, first)):
            whole, real = rng.integers(-9000, 9000, shape), rng.random(shape) * 9000
            for positions in (whole, real, real.astype(np.float32), real.astype(np.float16)):
                given = (put(positions), positions.tolist()) if positions.ndim else ()
                for each in given:
                    got = twice(lambda r=rope, p=each, a=array: r.rotate(put(a), p), monkeypatch)
                    expected = truth(rope.rotate, array, np.asarray(each))
                    np.testing.assert_array_equal(np.asarray(got), expected)


def test_fractions_out_of_range_are_loud(put: Callable[[np.ndarray], Any]) -> None:
    x = put(np.ones((2, 2, 8), np.float32))
    for _ in range(2):
        HALF.rotate(x, put(np.array([0.5, 1.5])))
        far = put(np.array([np.inf, -3e9]))
        with pytest.raises(RopeError, match="finite"):
            HALF.rotate(x, far)


def test_into_given_memory(
    put: Callable[[np.ndarray], Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = sample(rng, 1, 3, 4, 8), sample(rng, 1, 3, 2, 8)
    expected = truth(HALF.apply, q, k, [1, 2, 3])
    mine, yours = (put(q), put(k)), (put(q), put(k))
    made = twice(lambda: HALF.apply(*mine, [1, 2, 3], out=yours), monkeypatch)
    assert made[0] is yours[0]
    HALF.apply(*mine, [1, 2, 3], out=mine)
    np.testing.assert_array_equal(np.asarray(mine[0]), expected[0])
    np.testing.assert_array_equal(np.asarray(yours[1]), expected[1])
    again = put(q), put(k)
    twice(lambda: HALF.apply(*again, [0, 0, 0], out=again), monkeypatch)
    # Of the same kind, but for where memory lies.
    both = put(np.stack([q[0, :, :2], k[0]]))
    shared = both[:1], both[:1]
    good = both[:1], both[1:]
    twice(lambda: HALF.apply(*good, [1, 2, 3], out=good), monkeypatch)
    with pytest.raises(RopeError, match="overlap"):
        HALF.apply(*shared, [1, 2, 3], out=shared)
    with pytest.raises(RopeError, match="overlaps k without being q itself"):
        HALF.apply(*good, [1, 2, 3], out=good[::-1])


@pytest.mark.parametrize(
    "bad", [[1 << 31], [float("nan")], ["a"], [1, 2], [[1], [2]], 10**400, [True], [1j], {}]
)
def test_errors_are_those_of_the_slow_path(put_any: Callable[[np.ndarray], Any], bad: Any) -> None:
    x = put_any(np.ones((1, 1, 2, 8), np.float32))
    with pytest.raises(Exception) as first:  # noqa: PT011  # whatever it is, it is to stay
        HALF.rotate(x, bad)
    for _ in range(2):
        HALF.rotate(x, [5])
    with pytest.raises(type(first.value)) as second:
        HALF.rotate(x, bad)
    assert str(second.value) == str(first.value)


@pytest.mark.parametrize(
    "wrong",
    [{"layout": ["half"]}, {"axes": list("shd")}, {"rotary_offset": True}, {"rotary_offset": 1.0}],
    ids=str,
)
def test_arguments_that_are_wrong_stay_so(
    put_any: Callable[[np.ndarray], Any], wrong: dict[str, Any]
) -> None:
    """Also those that have no hash, or are equal to a right one."""
    x = put_any(np.ones((3, 2, 8), np.float32))
    tables = [put_any(t) for t in HALF.cos_sin([1, 2, 3], 6)]
    right = {"layout": "half", "rotary_offset": 1}
    for _ in range(3):
        rope_xp.apply_tables(x, *tables, **right)
    assert KINDS
    with pytest.raises((TypeError, RopeError), match=f"^{next(iter(wrong))} must be"):
        rope_xp.apply_tables(x, *tables, **right | wrong)


def test_a_read_only_result_is_of_another_kind() -> None:
    x, out = np.ones((1, 1, 2, 8), np.float32), np.ones((1, 1, 2, 8), np.float32)
    for _ in range(2):
        HALF.rotate(x, [5], out=out)
    out.setflags(write=False)
    with pytest.raises(RopeError, match="read-only"):
        HALF.rotate(x, [5], out=out)


def test_a_path_asked_for_is_taken(put: Callable[[np.ndarray], Any]) -> None:
    x = put(np.ones((1, 1, 2, 8), np.float32))
    for _ in range(2):
        HALF.rotate(x, [5])
    with pytest.raises((RopeError, ImportError), match="'jit'"), rope_xp.use_path("jit"):
        HALF.rotate(x, [5])
    with rope_xp.use_path("portable"):
        before = len(KINDS)
        HALF.rotate(x, [5])
        assert len(KINDS) == before + 1


def test_kinds_are_bounded() -> None:
    for tokens in range(1, 700):
        HALF.rotate(np.ones((tokens, 1, 8), np.float32))
    assert len(KINDS) <= 512


@pytest.mark.parametrize(("library", "most"), [("numpy", 17), ("torch", 30)])
def test_a_warm_call_runs_few_functions_of_few_files(library: str, most: int) -> None:
    """Counts do not vary as times do. asv keeps them too."""
    q = np.ones((1, 1, 32, 128), np.float32)
    arrays = (q, q[:, :, :8].copy(), np.array([5000]))
    if library == "torch":
        torch = pytest.importorskip("torch")
        arrays = tuple(map(torch.from_numpy, arrays))
    HALF.apply(*arrays)
    HALF.apply(*arrays)
    files: list[str] = []

    def count(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(count)
    try:
        HALF.apply(*arrays)
    finally:
        sys.setprofile(None)
    assert len(files) <= most
    assert len({name for name in files if "rope_xp" in name}) <= 8


# --- what torch's dispatcher would have seen to --------------------------------------------------


@pytest.fixture
def warm() -> Any:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 2, 8)
    for _ in range(2):
        HALF.rotate(x, [1, 2, 3])
    return x


def test_gradients_are_recorded(warm: Any) -> None:
    x = warm.clone().requires_grad_()
    for _ in range(2):
        x.grad = None
        HALF.rotate(x, [1, 2, 3]).sum().backward()
        expected = HALF.unrotate(np.ones((2, 3, 2, 8), np.float32), [1, 2, 3])
        np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_transforms_and_modes_go_the_slow_path(warm: Any) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def turn(x: Any) -> Any:
        return HALF.rotate(x, [1, 2, 3])

    expected = turn(warm)
    batch = torch.stack([warm, 2 * warm])
    np.testing.assert_array_equal(torch.func.vmap(turn)(batch)[0].numpy(), expected.numpy())
    _, tangent = torch.func.jvp(turn, (warm,), (warm,))
    np.testing.assert_array_equal(tangent.numpy(), expected.numpy())
    np.testing.assert_array_equal(
        torch.func.vjp(turn, warm)[1](expected)[0].numpy(), HALF.unrotate(expected, [1, 2, 3])
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(turn(torch.empty(2, 3, 2, 8))).__name__ == "FakeTensor"
    with torch.profiler.profile() as profile:
        turn(warm)
    assert any("rope_xp::rotate" in event.key for event in profile.key_averages())


def test_views_that_are_negated(warm: Any) -> None:
    import torch

    negated = torch._neg_view(warm)
    got = HALF.rotate(negated, [1, 2, 3])
    np.testing.assert_array_equal(got.numpy(), HALF.rotate(-warm, [1, 2, 3]).numpy())


def test_autograd_knows_what_was_written_over(warm: Any) -> None:
    for _ in range(3):
        version = warm._version
        HALF.rotate(warm, [1, 2, 3], out=warm)
        assert warm._version > version


def test_memory_of_inference_is_written_there_alone(warm: Any) -> None:
    import torch

    with torch.inference_mode():
        x = torch.ones(2, 3, 2, 8)
        for _ in range(2):
            HALF.rotate(x, [1, 2, 3], out=x)
    with pytest.raises(RopeError, match="inference_mode"):
        HALF.rotate(x, [1, 2, 3], out=x)
