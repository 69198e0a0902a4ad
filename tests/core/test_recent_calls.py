"""Recent calls: recognized by the attributes of arrays, never where one of them differs."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from support.bits import sample
from support.targets import truth

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError
from rope_xp._dispatch import call_cache, recent_calls

HALF = RoPE(layout="half")
Put = Callable[[np.ndarray], Any]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    pytest.importorskip("llvmlite")
    call_cache.CALLS.cache_clear()
    yield
    call_cache.CALLS.cache_clear()


@pytest.fixture(params=["numpy", "torch"])
def put(request: pytest.FixtureRequest) -> Put:
    if request.param == "numpy":
        return np.array
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


@pytest.fixture
def recognized(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that makes a call recent, then calls without looking up its signature."""

    def call_recent(call: Callable[[], Any]) -> Any:
        for _ in range(3):
            call()
        with monkeypatch.context() as patch:
            patch.setattr(call_cache, "run", lambda *_: pytest.fail("it was not recognized"))
            return call()

    return call_recent


def test_recognized_calls_have_the_bits_of_the_slow_path(
    put: Put, rng: Generator, recognized: Any
) -> None:
    q, k = sample(rng, 2, 3, 4, 8), sample(rng, 2, 3, 2, 8)
    wide = np.array([[5, 1 << 30, 3], [0, -7, 2]])
    for positions in (None, np.arange(3), wide, wide.astype(np.int32)):
        given, x, y = None if positions is None else put(positions), put(q), put(k)
        expected = truth(HALF.apply, q, k, positions)
        rotated = recognized(lambda x=x, y=y, p=given: HALF.apply(x, y, p))
        np.testing.assert_array_equal(np.asarray(rotated[0]), expected[0])
        np.testing.assert_array_equal(np.asarray(rotated[1]), expected[1])
        one = recognized(lambda x=x, p=given: HALF.unrotate(x, p))
        np.testing.assert_array_equal(np.asarray(one), truth(HALF.unrotate, q, positions))
    angles, norm = HALF.at(put(wide), like=put(q)), QKNorm(put(sample(rng, 8)), put(sample(rng, 8)))
    x, y, given = put(q), put(k), put(wide)
    expected = angles.apply(x, y, norm=norm)
    for rotated in (
        recognized(lambda: angles.apply(x, y, norm=norm)),
        recognized(lambda: HALF.apply(x, y, given, norm=norm)),
    ):
        np.testing.assert_array_equal(np.asarray(rotated[1]), np.asarray(expected[1]))


@pytest.mark.parametrize("bad", [1 << 31, -(1 << 31), -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("tokens", [3, 4096])
def test_positions_out_of_range_raise_before_anything_is_written(
    put: Put, bad: int, tokens: int, recognized: Any
) -> None:
    """The kernel finds them, in one part or in several."""
    positions = put(np.arange(tokens))
    x = put(np.ones((1, tokens, 3, 64), np.float32))
    y = put(np.ones((1, tokens, 1, 64), np.float32))
    recognized(lambda: HALF.apply(x, y, positions, out=(x, y)))
    before = np.asarray(x).copy()
    positions[tokens - 1] = bad
    with pytest.raises(RopeError, match="positions must lie between"):
        HALF.apply(x, y, positions, out=(x, y))
    np.testing.assert_array_equal(np.asarray(x), before)


def test_components_out_of_range_raise(put: Put, recognized: Any) -> None:
    rope = RoPE(layout="half", position_axes=(0, 1, 1, 2))
    x, positions = put(np.ones((1, 2, 1, 8), np.float32)), put(np.zeros((3, 2), np.int64))
    recognized(lambda: rope.rotate(x, positions))
    positions[2, 1] = 1 << 31
    with pytest.raises(RopeError, match="positions must lie between"):
        rope.rotate(x, positions)


def test_other_strides_dtypes_and_orders_are_not_taken_for_recent_ones(
    put: Put, rng: Generator, recognized: Any
) -> None:
    x = sample(rng, 4, 4, 2, 8)
    positions = np.arange(4)
    a = put(x)
    recognized(lambda: HALF.rotate(a, put(positions)))
    swapped = put(np.ascontiguousarray(x.transpose(1, 0, 2, 3)))
    other = swapped.transpose(1, 0, 2, 3) if put is np.array else swapped.transpose(0, 1)
    for y, p in (
        (other, positions),
        (put(x.astype(np.float64)), positions),
        (a, positions.astype(np.float32)),
        (a, np.arange(8)[::2]),
        (a, positions[None]),
        (a, positions.tolist()),
        (a, None),
    ):
        given = put(p) if isinstance(p, np.ndarray) and p.strides[-1] == p.itemsize else p
        expected = truth(HALF.rotate, np.asarray(y), p)
        np.testing.assert_array_equal(np.asarray(HALF.rotate(y, given)), expected)


def test_results_that_overlap_are_refused(put: Put, recognized: Any) -> None:
    memory = put(np.ones((1, 3, 4, 8), np.float32))
    x, y = memory[:, :, :2], memory[:, :, 2:]
    recognized(lambda: HALF.apply(x, y, out=(x, y)))
    for out in ((x, x), (memory[:, :, 1:3], y)):
        with pytest.raises(RopeError, match="overlap"):
            HALF.apply(out[0], out[1], out=out)


def test_evicted_tables_are_made_again(put: Put, recognized: Any) -> None:
    x, positions = put(np.ones((1, 2, 1, 8), np.float32)), put(np.array([3, 4]))
    expected = np.asarray(recognized(lambda: HALF.rotate(x, positions)))
    rope_xp.clear_caches()
    np.testing.assert_array_equal(np.asarray(HALF.rotate(x, positions)), expected)


def test_recent_calls_hold_no_arrays(put: Put, recognized: Any) -> None:
    def refer_to_arrays() -> list[Any]:
        q, k = (put(np.ones(s, np.float32)) for s in ((1, 2, 2, 8), (1, 2, 1, 8)))
        positions, out = put(np.arange(2)), (put(np.asarray(q)), put(np.asarray(k)))
        norm = QKNorm(put(np.ones(8, np.float32)), put(np.ones(8, np.float32)))
        angles = HALF.at(positions, like=q)
        recognized(lambda: HALF.apply(q, k, positions, out=out, norm=norm))
        recognized(lambda: angles.apply(q, k, out=out))
        held = [q, k, positions, *out, norm.q_weight, norm.k_weight, angles.cos, angles.sin]
        return [weakref.ref(x) for x in held]

    references = refer_to_arrays()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_a_rope_keeps_its_latest_calls_alone(put: Put) -> None:
    positions = put(np.array([3]))
    for heads in range(1, 12):
        x = put(np.ones((1, 1, heads, 8), np.float32))
        for _ in range(3):
            HALF.rotate(x, positions)
    assert len(recent_calls.RECENT.get(HALF)) == recent_calls.MAX_CALLS


def test_forced_paths_are_obeyed(put: Put, recognized: Any) -> None:
    x = put(np.ones((1, 2, 1, 8), np.float32))
    recognized(lambda: HALF.rotate(x))
    with rope_xp.use_path("cuda"), pytest.raises(RopeError, match="'cuda' was forced"):
        HALF.rotate(x)


class TestTorch:
    """What only tensors have, set after a call has become recent."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    @pytest.fixture
    def recent(self, torch: Any, recognized: Any) -> tuple[Any, Any]:
        x, positions = torch.randn(1, 2, 1, 8), torch.tensor([3, 4])
        recognized(lambda: HALF.rotate(x, positions))
        return x, positions

    def test_gradients_are_recorded(self, torch: Any, recent: tuple[Any, Any]) -> None:
        x, positions = recent
        x.requires_grad_()
        y = HALF.rotate(x, positions)
        y.sum().backward()
        expected = HALF.unrotate(torch.ones_like(y), positions)
        torch.testing.assert_close(x.grad, expected)

    def test_negated_views_are_read_as_they_are(self, torch: Any, recent: tuple[Any, Any]) -> None:
        x, positions = recent
        negated = torch._neg_view(x)
        assert torch.equal(HALF.rotate(negated, positions), HALF.rotate(-x, positions))

    def test_transforms_are_followed(self, torch: Any, recent: tuple[Any, Any]) -> None:
        x, positions = recent
        expected = HALF.rotate(x, positions)
        mapped = torch.func.vmap(lambda x: HALF.rotate(x, positions))(x[None])[0]
        assert torch.equal(mapped, expected)
        _, tangent = torch.func.jvp(lambda x: HALF.rotate(x, positions), (x,), (x,))
        assert torch.equal(tangent, expected)

    def test_functional_tensors_take_the_slow_path(
        self, torch: Any, recent: tuple[Any, Any]
    ) -> None:
        x, positions = recent
        wrapped = torch._to_functional_tensor(x)
        result = torch._from_functional_tensor(HALF.rotate(wrapped, positions))
        assert torch.equal(result, HALF.rotate(x, positions))

    def test_inference_tensors_are_not_written_outside(self, torch: Any, recognized: Any) -> None:
        x, positions = torch.randn(1, 2, 1, 8), torch.tensor([3, 4])
        recognized(lambda: HALF.rotate(x, positions, out=x))
        with torch.inference_mode():
            made = x.clone()
        with pytest.raises(RopeError, match="made under inference_mode"):
            HALF.rotate(made, positions, out=made)

    def test_versions_are_incremented(self, torch: Any, recognized: Any) -> None:
        x, positions = torch.randn(1, 2, 1, 8), torch.tensor([3, 4])
        recognized(lambda: HALF.rotate(x, positions, out=x))
        before = x._version
        HALF.rotate(x, positions, out=x)
        assert x._version > before

    def test_compiled_code_does_not_read_recent_calls(
        self, torch: Any, recent: tuple[Any, Any]
    ) -> None:
        """Dynamo would guard on them, and compile again after every new one."""
        x, positions = recent
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, p: HALF.rotate(x, p), backend="eager", fullgraph=True)
        compiled(x, positions)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for heads in (3, 4, 5):
                for _ in range(3):
                    HALF.rotate(torch.ones(1, 2, heads, 8), positions)
                compiled(x, positions)
