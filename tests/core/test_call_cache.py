"""A cached call does what the slow path does, errors among them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.bits import sample
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError, scaling
from rope_xp._arguments import parse
from rope_xp._dispatch import call_cache

CALLS = call_cache.CALLS
HALF = RoPE(layout="half")
Put = Callable[[np.ndarray], Any]


@pytest.fixture(autouse=True)
def compiled():
    """Have a kernel, which specializes calls, and no signatures of other tests."""
    pytest.importorskip("llvmlite")
    CALLS.cache_clear()
    for dtype in (np.float32, np.float64):
        with rope_xp.use_path("llvm"):
            HALF.rotate(np.ones((3, 2, 8), dtype))
    yield
    CALLS.cache_clear()


def put_in(library: str) -> Put:
    if library == "numpy":
        return np.array
    if library == "jax":
        return pytest.importorskip("jax.numpy").asarray
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


@pytest.fixture(params=["numpy", "torch"])
def put(request):
    return put_in(request.param)


on_jax_too = pytest.mark.parametrize("put", ["numpy", "torch", "jax"], indirect=True)


@pytest.fixture
def cached(monkeypatch):
    """Return a function that calls until the call is cached, and once more without parsing."""

    def call_cached(call: Callable[[], Any]) -> Any:
        call()  # of a class of arrays that may be new
        call()
        with monkeypatch.context() as patch:
            for name in ("apply", "rotate"):
                patch.setattr(parse, name, lambda *_: pytest.fail("it took the slow path"))
            return call()

    return call_cached


ROPES = {
    "half": HALF,
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=2),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(8.0, 4096)),
    "negative offset": RoPE(layout="half", rotary_dim=4, rotary_offset=-4),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
def test_cached_calls_equal_the_slow_path(put, axes, rope, dtype, rng, cached):
    q, k = sample(rng, 2, 2, 2, 8, dtype=dtype), sample(rng, 2, 2, 2, 8, dtype=dtype)
    for positions in (
        *(None, [5, 1_000_000], np.array([7, -9]), np.array([7, -9], np.int32)),
        np.array([[1, 2], [3, 4]]),
    ):
        given = put(positions) if isinstance(positions, np.ndarray) else positions
        rotated = cached(lambda p=given: rope.apply(put(q), put(k), p, axes=axes))
        back = cached(lambda p=given: rope.unrotate(put(q), p, axes=axes))
        expected = truth(rope.apply, q, k, positions, axes=axes)
        np.testing.assert_array_equal([*map(np.asarray, rotated)], expected)
        np.testing.assert_array_equal(back, truth(rope.unrotate, q, positions, axes=axes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cached_fractions_and_components_equal_the_slow_path(put, dtype, rng, cached):
    many, one = sample(rng, 2, 3, 2, 8, dtype=dtype), sample(rng, 1, 1, 2, 8, dtype=dtype)
    mixed = RoPE(layout="half", position_axes=(0, 1, 1, 0))
    cases = [(HALF, many, (3,)), (HALF, one, (1,)), (mixed, many, (2, 3)), (mixed, one, (2, 1))]
    for rope, x, shape in [*cases, (mixed, many, (2, 2, 3)), (mixed, one, (2,))]:
        whole, real = rng.integers(-9000, 9000, shape), rng.random(shape) * 9000
        for positions in (whole, real, real.astype(np.float32), real.astype(np.float16)):
            for given in (put(positions), positions.tolist()):
                rotated = cached(lambda r=rope, p=given, x=x: r.rotate(put(x), p))
                np.testing.assert_array_equal(rotated, truth(rope.rotate, x, np.asarray(given)))


def test_cached_calls_check_overlap_anew(put, rng, cached):
    q, k = sample(rng, 1, 3, 4, 8), sample(rng, 1, 3, 2, 8)
    expected = truth(HALF.apply, q, k, [1, 2, 3])
    pair, out = (put(q), put(k)), (put(q), put(k))
    assert cached(lambda: HALF.apply(*pair, [1, 2, 3], out=out))[0] is out[0]
    HALF.apply(*pair, [1, 2, 3], out=pair)
    np.testing.assert_array_equal(np.asarray(pair[0]), expected[0])
    np.testing.assert_array_equal(np.asarray(out[1]), expected[1])
    cached(lambda: HALF.apply(*out, [0, 0, 0], out=out))
    # Calls whose signatures are equal, and whose memory is not.
    both = put(np.stack([q[0, :, :2], k[0]]))
    apart, shared = (both[:1], both[1:]), (both[:1], both[:1])
    cached(lambda: HALF.apply(*apart, [1, 2, 3], out=apart))
    with pytest.raises(RopeError, match="overlap"):
        HALF.apply(*shared, [1, 2, 3], out=shared)
    with pytest.raises(RopeError, match="overlaps k but is not q itself"):
        HALF.apply(*apart, [1, 2, 3], out=apart[::-1])


@on_jax_too
@pytest.mark.parametrize(
    "bad", [[1 << 31], [float("nan")], ["a"], [1, 2], [[1], [2]], 10**400, [True], [1j], {}]
)
def test_bad_positions_of_cached_calls_raise_as_on_the_slow_path(put, bad):
    x = put(np.ones((1, 1, 2, 8), np.float32))
    with pytest.raises(Exception) as first:  # noqa: PT011  # whatever it is, it is to stay
        HALF.rotate(x, bad)
    for _ in range(2):
        HALF.rotate(x, [5])
    with pytest.raises(type(first.value)) as second:
        HALF.rotate(x, bad)
    assert str(second.value) == str(first.value)


@on_jax_too
@pytest.mark.parametrize(
    "wrong",
    [{"layout": ["half"]}, {"axes": list("shd")}, {"rotary_offset": True}, {"rotary_offset": 1.0}],
    ids=str,
)
def test_wrong_arguments_equal_to_cached_ones_are_refused(put, wrong):
    """Also those that have no hash, or are equal to a right one."""
    x = put(np.ones((3, 2, 8), np.float32))
    tables = [put(t) for t in HALF.cos_sin([1, 2, 3], 6)]
    right = {"layout": "half", "rotary_offset": 1}
    for _ in range(3):
        rope_xp.apply_tables(x, *tables, **right)
    assert CALLS
    with pytest.raises((TypeError, RopeError), match=f"^{next(iter(wrong))} must be"):
        rope_xp.apply_tables(x, *tables, **right | wrong)


def test_cached_calls_check_values_paths_and_writability_anew(put):
    x, out = put(np.ones((2, 2, 8), np.float32)), np.ones((2, 2, 8), np.float32)
    for _ in range(2):
        HALF.rotate(x, [5, 6])
        HALF.rotate(x, put(np.array([0.5, 1.5])))
        with pytest.raises(RopeError, match="must lie between"):
            HALF.rotate(x, put(np.array([np.inf, -3e9])))
        HALF.rotate(out, [5, 6], out=out)
    with pytest.raises((RopeError, ImportError), match="'jit'"), rope_xp.use_path("jit"):
        HALF.rotate(x, [5, 6])
    with rope_xp.use_path("portable"):
        before = len(CALLS)
        HALF.rotate(x, [5, 6])
        assert len(CALLS) == before + 1
    out.setflags(write=False)
    with pytest.raises(RopeError, match="read-only"):
        HALF.rotate(out, [5, 6], out=out)


def test_cached_calls_are_bounded():
    for tokens in range(1, 700):
        HALF.rotate(np.ones((tokens, 1, 8), np.float32))
    assert len(CALLS) <= 512


def test_a_signature_in_use_stays_cached_while_others_pass(monkeypatch):
    x, parsed = np.ones((1, 1, 8), np.float32), []
    for _ in range(2):
        HALF.rotate(x, [5])
    rotate = parse.rotate
    monkeypatch.setattr(parse, "rotate", lambda *args: parsed.append(args[1]) or rotate(*args))
    for tokens in range(2, 1200):
        HALF.rotate(x, [5])
        HALF.rotate(np.ones((tokens, 1, 8), np.float32))
    assert len(parsed) == 1198
    assert all(y is not x for y in parsed)


# --- what torch's dispatcher would have seen to --------------------------------------------------


def rotate(x: Any, **options: Any) -> Any:
    return HALF.rotate(x, [1, 2, 3], **options)


@pytest.fixture
def warm():
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 2, 8)
    for _ in range(2):
        rotate(x)
    return x


def test_cached_calls_record_gradients(warm):
    x = warm.clone().requires_grad_()
    for _ in range(2):
        x.grad = None
        rotate(x).sum().backward()
        expected = HALF.unrotate(np.ones((2, 3, 2, 8), np.float32), [1, 2, 3])
        np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_transforms_and_modes_take_the_slow_path_after_cached_calls(warm):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    expected = rotate(warm)
    _, tangent = torch.func.jvp(rotate, (warm,), (warm,))
    batched = torch.func.vmap(rotate)(torch.stack([warm, 2 * warm]))[0]
    for rotated in (tangent, batched):
        np.testing.assert_array_equal(rotated.numpy(), expected.numpy())
    (gradient,) = torch.func.vjp(rotate, warm)[1](expected)
    np.testing.assert_array_equal(gradient.numpy(), HALF.unrotate(expected, [1, 2, 3]))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(rotate(torch.empty(2, 3, 2, 8))).__name__ == "FakeTensor"
    with torch.profiler.profile() as profile:
        rotate(warm)
    assert any("rope_xp::rotate" in event.key for event in profile.key_averages())
    negated = torch._neg_view(warm)
    np.testing.assert_array_equal(rotate(negated).numpy(), rotate(-warm).numpy())


def test_cached_calls_in_place_tell_autograd(warm):
    for _ in range(3):
        version = warm._version
        rotate(warm, out=warm)
        assert warm._version > version


def test_inference_tensors_are_written_in_inference_mode_alone(warm):
    import torch

    with torch.inference_mode():
        x = torch.ones(2, 3, 2, 8)
        for _ in range(2):
            rotate(x, out=x)
    with pytest.raises(RopeError, match="inference_mode"):
        rotate(x, out=x)


def test_slices_of_a_projection_are_cached_in_place(put, cached, rng):
    fused = put(sample(rng, 1, 5, 3, 4, 8))
    q, k = fused[:, :, 0], fused[:, :, 1]
    expected = [np.array(np.asarray(x)) for x in HALF.apply(q, k)]
    for _ in range(2):
        expected = HALF.apply(*expected)
    for got, e in zip(cached(lambda: HALF.apply(q, k, out=(q, k))), expected, strict=True):
        np.testing.assert_array_equal(got, e)
