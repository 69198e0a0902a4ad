"""Cached calls, and recent ones that skip the cache: the bits and errors of the slow path."""

import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.slow_path import run_twice
from support.targets import truth

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError, scaling
from rope_xp._dispatch import call_cache, recent_calls
from rope_xp._dispatch.rope_keys import find_key
from rope_xp._rotation import portable

CALLS = call_cache.CALLS
HALF = RoPE(layout="half")


@pytest.fixture(autouse=True)
def compiled():
    """Have a kernel, which specializes calls, and no signatures of other tests."""
    pytest.importorskip("rope_xp_backends.cpu._native")
    for dtype in (np.float32, np.float64):
        with rope_xp.use_path("native"):
            HALF.rotate(np.ones((3, 2, 8), dtype))
    CALLS.cache_clear()
    yield
    CALLS.cache_clear()


@pytest.fixture(params=["numpy", "torch"])
def put(request) -> Callable[[np.ndarray], Any]:
    if request.param == "numpy":
        return np.array
    if request.param == "jax":
        return pytest.importorskip("jax.numpy").asarray
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


on_jax_too = pytest.mark.parametrize("put", ["numpy", "torch", "jax"], indirect=True)


@pytest.fixture
def check(monkeypatch):
    """Compare a cached call with the slow path, and if ``exact`` with the portable one."""

    def compare(call: Callable[[], Any], *, exact: bool = True) -> None:
        def run() -> tuple[np.ndarray, ...]:
            results = call()
            return tuple(map(np.asarray, results if isinstance(results, tuple) else (results,)))

        slow, cached = run_twice(run, monkeypatch)
        same(cached, slow)
        if exact:
            same(cached, truth(run))

    return compare


ROPES = {
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=-7),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(8.0, 4096)),
    "components": RoPE(layout="half", position_axes=(0, 1, 1, 0)),
}


@pytest.mark.covering
@on_jax_too
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
def test_cached_calls_have_the_bits_of_the_slow_path(put, axes, rope, dtype, rng, check):
    of_jax = "jax" in type(put(np.ones(1))).__module__
    dtype = "float32" if of_jax else dtype
    lead = (2,) if rope.position_axes else ()
    for tokens in (2,) if of_jax else (1, 2):  # jax compiles each shape anew
        q, k = (put(sample(rng, 2, 2, 2, 8, dtype=dtype)) for _ in "qk")
        if tokens == 1:
            q, k = (put(sample(rng, 1, 1, 1, 8, dtype=dtype)) for _ in "qk")
        whole = rng.integers(-9000, 1 << 30, (*lead, tokens))
        batched = rng.integers(-9000, 1 << 30, (*lead, q.shape[0], tokens))
        given = [None, whole, whole.astype(np.int32), whole.tolist(), put(whole.astype(np.int32))]
        given += [put(whole), put(batched), whole / 3e5, put((whole / 3e5).astype(np.float16))]
        for p in [None, whole.tolist(), given[4]] if of_jax else given:
            check(lambda p=p, q=q, k=k: rope.apply(q, k, p, axes=axes), exact=not of_jax)
            check(lambda p=p, q=q: rope.unrotate(q, p, axes=axes), exact=not of_jax)


@on_jax_too
def test_cached_angles_and_norms_have_the_bits_of_the_slow_path(put, rng, check):
    q, k, places = put(sample(rng, 2, 3, 4, 8)), put(sample(rng, 2, 3, 2, 8)), put(np.arange(3))
    angles, exact = HALF.at(places, like=q), "jax" not in type(q).__module__
    norm = QKNorm(put(sample(rng, 8)), put(sample(rng, 8)))
    for option in {"norm": norm}, {}:
        check(lambda option=option: angles.apply(q, k, **option), exact=exact)
        check(lambda option=option: HALF.apply(q, k, places, **option), exact=exact)


def test_calls_like_recent_ones_but_for_memory_or_dtype_are_right(put, rng):
    x, positions = sample(rng, 4, 4, 2, 8), np.arange(4)
    a = put(x)
    for _ in range(3):
        HALF.rotate(a, put(positions))
    swapped = put(np.ascontiguousarray(x.swapaxes(0, 1))).swapaxes(0, 1)
    wide = put(x.astype(np.float64))
    for y, p in (
        *((swapped, positions), (wide, positions), (a, positions.astype(np.float32))),
        *((a, np.arange(8)[::2]), (a, positions[None]), (a, positions.tolist()), (a, None)),
    ):
        given = put(p) if isinstance(p, np.ndarray) and p.strides[-1] == p.itemsize else p
        np.testing.assert_array_equal(HALF.rotate(y, given), truth(HALF.rotate, np.asarray(y), p))


def test_cached_calls_in_place_check_overlap_anew(put, rng):
    fused = put(sample(rng, 1, 3, 6, 8))
    q, k = fused[:, :, :4], fused[:, :, 4:]
    for _ in range(4):
        expected = truth(HALF.apply, *(np.asarray(x).copy() for x in (q, k)), [1, 2, 3])
        results = HALF.apply(q, k, [1, 2, 3], out=(q, k))
        assert (results[0] is q, results[1] is k) == (True, True)
        same((np.asarray(q), np.asarray(k)), expected)
    # Calls whose signatures are equal, and whose memory is not.
    both = put(sample(rng, 2, 3, 2, 8))
    apart, shared = (both[:1], both[1:]), (both[:1], both[:1])
    for _ in range(3):
        HALF.apply(*apart, [1, 2, 3], out=apart)
    with pytest.raises(RopeError, match="overlap"):
        HALF.apply(*shared, [1, 2, 3], out=shared)
    with pytest.raises(RopeError, match="overlaps k but is not q itself"):
        HALF.apply(*apart, [1, 2, 3], out=apart[::-1])


@pytest.mark.parametrize("bad", [1 << 31, -(1 << 31), -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("tokens", [3, 4096])
def test_positions_out_of_range_raise_before_anything_is_written(put, bad, tokens):
    """The kernel finds them, in one part or in several, also in a component."""
    axial = RoPE(layout="half", position_axes=(0, 1) * 16)
    x, positions = put(np.ones((1, tokens, 3, 64), np.float32)), put(np.arange(tokens))
    pairs = put(np.stack([np.arange(tokens)] * 2))
    for rope, at in ((HALF, positions), (axial, pairs)):
        for _ in range(3):
            rope.rotate(x, at, out=x)
        before = np.asarray(x).copy()
        at[..., tokens - 1] = bad
        with pytest.raises(RopeError, match="positions must lie between"):
            rope.rotate(x, at, out=x)
        np.testing.assert_array_equal(x, before)


@on_jax_too
def test_bad_positions_of_cached_calls_raise_as_on_the_slow_path(put):
    x = put(np.ones((1, 1, 2, 8), np.float32))
    for bad in ([1 << 31], [np.nan], ["a"], [1, 2], [[1], [2]], 10**400, [True], [1j], {}):
        CALLS.cache_clear()
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


def test_cached_calls_obey_forced_paths_and_check_writability_anew(put, monkeypatch):
    x, out = put(np.ones((2, 2, 8), np.float32)), np.ones((2, 2, 8), np.float32)
    for _ in range(3):
        HALF.rotate(x, [5, 6])
        HALF.rotate(out, [5, 6], out=out)
    with pytest.raises((RopeError, ImportError), match="'jit'"), rope_xp.use_path("jit"):
        HALF.rotate(x, [5, 6])
    monkeypatch.setattr(portable, "run", lambda _: 1 / 0)
    with rope_xp.use_path("portable"), pytest.raises(ZeroDivisionError):
        HALF.rotate(x, [5, 6])
    out.setflags(write=False)
    with pytest.raises(RopeError, match="read-only"):
        HALF.rotate(out, [5, 6], out=out)


def test_cached_calls_are_bounded_and_outlive_their_tables(put):
    x, positions = put(np.ones((1, 2, 1, 8), np.float32)), put(np.array([3, 4]))
    for tokens in range(1, 530):
        HALF.rotate(np.ones((tokens, 1, 8), np.float32))
    for heads in range(1, 12):
        for _ in range(3):
            HALF.rotate(put(np.ones((1, 2, heads, 8), np.float32)), positions)
    assert len(CALLS) <= 512
    assert len(recent_calls.RECENT.get(find_key(HALF))) == recent_calls.MAX_CALLS
    expected = truth(HALF.rotate, x, positions)
    for _ in range(3):
        np.testing.assert_array_equal(HALF.rotate(x, positions), expected)
    rope_xp.clear_caches()
    np.testing.assert_array_equal(HALF.rotate(x, positions), expected)


@pytest.mark.usefixtures("small_heap")
@on_jax_too
def test_cached_calls_hold_no_arrays(put):
    def refer_to_arrays() -> list[Any]:
        q, k = (put(np.ones((1, 2, n, 8), np.float32)) for n in (2, 1))
        positions = put(np.arange(2))
        norm, angles = QKNorm(*(put(np.ones(8, np.float32)) for _ in "qk")), HALF.at([0, 1], like=q)
        for _ in range(3):
            made = [*HALF.apply(q, k, positions, norm=norm), *angles.apply(q, k)]
        assert CALLS
        held = [q, k, positions, norm.q_weight, norm.k_weight, angles.cos, angles.sin, *made]
        return [weakref.ref(x) for x in held]

    references = refer_to_arrays()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_positions_beyond_those_of_a_cached_call_of_jax_are_exact():
    """What is compiled for small ones reads fewer digits."""
    x = pytest.importorskip("jax.numpy").ones((1, 2, 8))
    for _ in range(2):
        HALF.rotate(x, [5])
    for far in (5000, 5_000_000, -5, -5_000_000):
        expected = HALF.rotate(np.ones((1, 2, 8), np.float32), [far])
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(HALF.rotate(x, [far])), expected, atol=1e-6)


def test_transforms_of_jax_after_cached_calls_take_the_slow_path():
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(48.0).reshape(3, 2, 8)
    for _ in range(3):
        expected = np.asarray(HALF.rotate(x))
    traced = jax.jit(lambda y: HALF.rotate(x) + y)(jax.numpy.zeros_like(x))  # x is constant there
    (grad,) = jax.vjp(HALF.rotate, x)[1](jax.numpy.ones_like(x))
    np.testing.assert_allclose(jax.vmap(HALF.rotate)(x[None])[0], expected, atol=1e-6)
    np.testing.assert_allclose(traced, expected, atol=1e-6)
    np.testing.assert_allclose(grad, HALF.unrotate(jax.numpy.ones_like(x)), atol=1e-6)


# --- what torch's dispatcher would have seen to --------------------------------------------------


@pytest.fixture(params=[[1, 2, 3], None], ids=["cached", "recent"])
def rotate(request):
    """Return a function whose calls with tensors of one shape are cached, or recent."""
    torch = pytest.importorskip("torch")
    positions = request.param or torch.tensor([1, 2, 3])

    def rotate(x: Any, **options: Any) -> Any:
        return HALF.rotate(x, positions, **options)

    x = torch.ones(2, 3, 2, 8)
    for _ in range(3):
        rotate(x)
        rotate(x, out=x)
    return rotate


def test_gradients_modes_and_transforms_after_cached_calls_are_right(rotate):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn(2, 3, 2, 8)
    expected, back = truth(rotate, x), HALF.unrotate(torch.ones_like(x), [1, 2, 3])
    leaf = x.clone().requires_grad_()
    rotate(leaf).sum().backward()
    functional = torch._to_functional_tensor(x.clone())
    for got, right in (
        (leaf.grad, back),
        (torch.func.jvp(rotate, (x,), (x,))[1], expected),
        (torch.func.vmap(rotate)(torch.stack([x, 2 * x]))[0], expected),
        (torch.func.vjp(rotate, x)[1](torch.ones_like(x))[0], back),
        (torch._from_functional_tensor(rotate(functional)), expected),
        (rotate(torch._neg_view(x)), rotate(-x)),
    ):
        torch.testing.assert_close(got, right, rtol=0, atol=0)
    rotate(functional, out=functional)
    torch._sync(functional)
    assert torch.equal(torch._from_functional_tensor(functional), expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(HALF.rotate(torch.empty(2, 3, 2, 8), [1, 2, 3])).__name__ == "FakeTensor"
    with torch.profiler.profile() as profile:
        rotate(x)
    assert any("rope_xp::rotate" in event.key for event in profile.key_averages())


def test_cached_calls_in_place_tell_autograd_and_refuse_inference_tensors(rotate):
    import torch

    x = torch.ones(2, 3, 2, 8)
    version = x._version
    rotate(x, out=x)
    assert x._version > version
    with torch.inference_mode():
        frozen = x.clone()
        for _ in range(2):
            rotate(frozen, out=frozen)
    with pytest.raises(RopeError, match="inference_mode"):
        rotate(frozen, out=frozen)


def test_calls_in_place_under_inference_mode_are_recent_ones():
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        x, position = torch.ones(1, 1, 2, 8), torch.tensor([5])
        for _ in range(3):
            HALF.rotate(x, position, out=x)
        assert recent_calls.recall(HALF, (x,), position, None, (x,), False, None)


def test_keys_with_positions_of_their_own_are_recent_calls_that_fit_their_queries(put):
    q, k = (put(np.ones((2, n, 2, 8), np.float32)) for n in (1, 3))
    own = put(np.array([4])), put(np.array([2, 3, 4]))
    expected = truth(HALF.rotate, q, own[0]), truth(HALF.rotate, k, own[1])
    for batch in (1, 2):
        for _ in range(3):
            results = HALF.apply(q[:batch], k[:batch], own[0], k_positions=own[1])
            for y, same_bits in zip(results, expected, strict=True):
                np.testing.assert_array_equal(y, same_bits[:batch])
    with pytest.raises(RopeError, match="differ in batch"):
        HALF.apply(q[:1], k, own[0], k_positions=own[1])
    with pytest.raises(RopeError, match="k_positions has shape"):
        HALF.apply(q, k, own[0], k_positions=own[1][:2])


def test_equal_ropes_share_their_recent_calls_and_are_compared_once(monkeypatch):
    first, second = (RoPE(layout="half", scaling=scaling.Linear(3.0)) for _ in range(2))
    x = np.ones((1, 1, 2, 8), np.float32)
    for rope in (first, first, first, second):
        rope.rotate(x)
    monkeypatch.setattr(RoPE, "__eq__", lambda *_: pytest.fail("they are compared again"))
    assert recent_calls.recall(second, (x,), None, None, None, False, None)


def test_a_rope_in_the_memory_of_another_has_its_own_key():
    keys, ids = set(), set()
    for base in range(1, 3001):  # more than are kept
        rope = RoPE(base=float(base))
        keys.add(find_key(rope))
        ids.add(id(rope))
        del rope
    assert len(ids) < len(keys) == 3000


def test_a_scaling_that_changes_after_cached_calls_is_read_again():
    @dataclasses.dataclass(unsafe_hash=True)
    class Divided(scaling.Scaling):
        by: float

        def frequencies(self, base: float, r: int) -> np.ndarray:
            return np.ones(r // 2) / self.by

    divided, x = Divided(1.0), np.ones((1, 1, 2, 8), np.float32)
    rope = RoPE(scaling=divided)
    for by in (1.0, 2.0):
        divided.by = by
        expected = truth(RoPE(scaling=Divided(by)).rotate, x, [5])
        for _ in range(3):
            np.testing.assert_array_equal(rope.rotate(x, [5]), expected)


def test_tokens_become_the_first_recent_call_again_after_a_prompt():
    token, prompt = np.ones((1, 1, 2, 8), np.float32), np.ones((1, 5, 2, 8), np.float32)
    for x in (token, prompt):
        for _ in range(3):
            HALF.rotate(x)
    first, second, *_ = recent_calls.RECENT.get(find_key(HALF))
    for _ in range(recent_calls.LATER_HITS):
        np.testing.assert_array_equal(HALF.rotate(token), token)
    assert recent_calls.RECENT.get(find_key(HALF))[:2] == (second, first)


@pytest.mark.parametrize("positions", [[5], [5.5], [5, 6, 7]])
def test_functional_positions_after_cached_plain_ones_are_taken(positions):
    torch = pytest.importorskip("torch")
    x = torch.randn(1, len(positions), 2, 8)
    expected = [HALF.rotate(x, torch.tensor(positions)) for _ in range(3)][-1]
    functional = torch._to_functional_tensor(torch.tensor(positions))
    assert torch.equal(torch._from_functional_tensor(HALF.rotate(x, functional)), expected)


def test_compiled_code_does_not_read_recent_calls():
    """Dynamo would guard on them, and compile again after every new one."""
    torch = pytest.importorskip("torch")
    x, positions = torch.randn(1, 2, 1, 8), torch.tensor([3, 4])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, p: HALF.rotate(x, p), backend="eager", fullgraph=True)
    compiled(x, positions)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for heads in (3, 4, 5):
            for _ in range(3):
                HALF.rotate(torch.ones(1, 2, heads, 8), positions)
            compiled(x, positions)
