"""The native entry: which calls it takes, and that it leaves all others as they were."""

import copy
import dataclasses
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.targets import truth
from support.ways import decline_all, run_both_ways

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError, scaling
from rope_xp._rotation import portable

HALF = RoPE(layout="half")


pytest.importorskip("rope_xp_backends.cpu._native")


@pytest.fixture(params=["numpy", "torch"])
def put(request) -> Callable[[np.ndarray], Any]:
    if request.param == "numpy":
        return np.array
    if request.param == "jax":
        return pytest.importorskip("jax.numpy").asarray
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


@pytest.fixture
def check(monkeypatch):
    """Compare the entry, which has to take a call, with the slow path and the portable path."""

    def compare(call: Callable[[], Any]) -> None:
        def run() -> tuple[np.ndarray, ...]:
            results = call()
            return tuple(map(np.asarray, results if isinstance(results, tuple) else (results,)))

        slow, at_once = run_both_ways(run, monkeypatch)
        same(at_once, slow)
        same(at_once, truth(run))

    return compare


ROPES = {
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=-7),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(8.0, 4096)),
    "components": RoPE(layout="half", position_axes=(0, 1, 1, 0)),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
@pytest.mark.parametrize("axes", [None, "bhsd", "sbhd"])
def test_the_entry_has_the_bits_of_the_slow_path(put, axes, rope, dtype, rng, check):
    lead = (2,) if rope.position_axes else ()
    for tokens, batch in ((1, 1), (2, 2)):
        q, k = (put(sample(rng, *shape, 8, dtype=dtype)) for shape in lay_out(axes, batch, tokens))
        whole = rng.integers(-9000, 1 << 30, (*lead, tokens))
        batched = rng.integers(-9000, 1 << 30, (*lead, batch, tokens))
        given: list[Any] = [None, whole, whole.astype(np.int32), put(whole.astype(np.int32))]
        given += [put(whole), put(batched), whole / 3e5, put((whole / 3e5).astype(np.float32))]
        if not lead:
            given += [whole.tolist(), tuple(whole.tolist()), range(5, 5 + tokens)]
            given += [7] if tokens == 1 else []
        for p in given:
            if "torch" in type(p).__module__ and "numpy" in type(q).__module__:
                continue
            out = tuple(put(np.asarray(x)) for x in (q, k))
            check(lambda p=p, q=q, k=k: rope.apply(q, k, p, axes=axes))
            check(lambda p=p, q=q, k=k, out=out: rope.apply(q, k, p, axes=axes, out=out))
            check(lambda p=p, q=q: rope.rotate(q, p, axes=axes))
            check(lambda p=p, q=q: rope.unrotate(q, p, axes=axes))
            for own in (whole, *([] if lead else [whole.tolist()])):
                check(lambda p=p, q=q, k=k, w=own: rope.apply(q, k, p, axes=axes, k_positions=w))
            if p is not None:
                check(lambda p=p, q=q: look_up(rope, p, q))


def lay_out(axes: str | None, batch: int, tokens: int) -> list[tuple[int, ...]]:
    sizes = {"b": batch, "s": tokens}
    return [tuple(sizes.get(a, heads) for a in (axes or "bshd")[:-1]) for heads in (4, 2)]


def look_up(rope: RoPE, positions: Any, like: Any) -> tuple[Any, ...]:
    angles = rope.at(positions, like=like)
    return angles.cos, angles.sin, *(angles.inverse or ())


def test_angles_and_norms_have_the_bits_of_the_slow_path(put, rng, check):
    q, k, places = put(sample(rng, 2, 3, 4, 8)), put(sample(rng, 2, 3, 2, 8)), put(np.arange(3))
    angles, tables = HALF.at(places, like=q), HALF.cos_sin([1, 2, 3], 8)
    q_weight, k_weight = put(sample(rng, 8)), put(sample(rng, 8))
    for option in {"norm": QKNorm(q_weight, k_weight, offset=1.0)}, {"norm": QKNorm()}, {}:
        check(lambda option=option: angles.apply(q, k, **option))
        check(lambda option=option: HALF.apply(q, k, places, **option))
        check(lambda option=option: HALF.apply(q, k, places, k_positions=places, **option))
    check(lambda: HALF.rotate(q, places, norm=(q_weight, 1e-5)))
    check(lambda: angles.rotate(q, norm=(q_weight, 1e-5)))
    check(lambda: angles.unrotate(q))
    for table in tables, [t.astype(np.float64) for t in tables], [t[:, :2] for t in tables]:
        given = [put(t) for t in table]
        for inverse in (False, True):
            options = {"layout": "interleaved", "inverse": inverse, "rotary_offset": -4}
            options = options if table[0].shape[-1] == 2 else options | {"rotary_offset": 0}
            check(lambda given=given, options=options: rope_xp.apply_tables(q, *given, **options))


@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_tables_of_each_head_have_the_bits_of_the_slow_path(put, axes, heads, rng, check):
    q, k = (put(sample(rng, *shape, 8)) for shape in lay_out(axes, 2, 3))
    k = q if heads == 4 else k
    for lead, width in ((2, 4), (1, 4), (2, 3)):
        cos, sin = (put(sample(rng, lead, 3, heads, width)) for _ in "cs")
        for inverse in (False, True):
            options = {"axes": axes, "layout": "half", "inverse": inverse}
            check(lambda c=cos, s=sin, o=options: rope_xp.apply_tables(q, c, s, **o))
        if width == 4:
            angles = HALF.with_tables(cos, sin)
            check(lambda a=angles: a.apply(q, k, axes=axes))
            out = tuple(put(np.asarray(x)) for x in (q, k))
            check(lambda a=angles, o=out: a.apply(q, k, axes=axes, out=o))


def test_lists_of_results_steps_and_two_dtypes_have_the_bits_of_the_slow_path(put, rng, check):
    q, k = (put(sample(rng, 2, 3, heads, 8)) for heads in (4, 2))
    out = [put(np.asarray(x)) for x in (q, k)]
    check(lambda: HALF.apply(q, k, [5, 6, 7], out=out))
    narrow, stepped = put(sample(rng, 2, 3, 2, 8, dtype="float16")), put(sample(rng, 2, 3, 4, 16))
    check(lambda: HALF.apply(q, narrow, [5, 6, 7]))
    check(lambda: HALF.apply(narrow, k, [5, 6, 7], k_positions=[1, 2, 3]))
    check(lambda: HALF.apply(stepped[..., ::2], k, [5, 6, 7]))
    check(lambda: HALF.rotate(stepped[..., 1::2], [5, 6, 7], out=put(np.asarray(q))))


def test_memory_maps_are_taken_as_arrays(rng, check, tmp_path):
    q, k = (sample(rng, 2, 3, heads, 8) for heads in (4, 2))
    mapped = np.memmap(tmp_path / "q", np.float32, "w+", shape=q.shape)
    mapped[...] = q
    check(lambda: HALF.apply(mapped, k, [5, 6, 7]))
    HALF.rotate(mapped, [5, 6, 7], out=mapped)
    same(np.asarray(mapped), HALF.rotate(q, [5, 6, 7]))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_keys_move_with_the_bits_of_the_slow_path(put, rope, rng, check):
    x, lead = put(sample(rng, 2, 3, 4, 8)), (2,) if rope.position_axes else ()
    for rows in ((3,), (2, 3)):
        old, new = (rng.integers(-9000, 1 << 30, (*lead, *rows)) for _ in "on")
        for places in ((old, new), (put(old), put(new))):
            check(lambda p=places: rope.rerotate(x, *p))
            check(lambda p=places: rope.rerotate(x, *p, out=put(np.asarray(x))))
            check(lambda p=places: rope.cos_sin(p[0], 8))


@pytest.fixture
def described():
    """Have arrays read by their attributes, as of a numpy or torch that is too new or too old."""
    torch = pytest.importorskip("torch")
    from rope_xp_backends.cpu import entry, native
    from rope_xp_backends.torch import entry as of_torch
    from rope_xp_backends.torch import private

    kinds, module = (torch.Tensor, torch.nn.Parameter), native.module
    other, dtypes = np.ones(3), tuple(map(np.dtype, ["f2", "f2", "f4", "f8", "i4", "i8"]))
    wrong = ((other, 0, 3, (3,), (8,), other.flags.num),)
    assert not module.set_up_numpy(np.ndarray, np.memmap, dtypes, wrong, entry.describe)
    assert not module.set_up_torch(*kinds, None, of_torch.describe)
    yield
    entry.read_by_fields()
    module.set_up_torch(*kinds, private.dlpack_exchange, of_torch.describe)


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_are_described_where_their_fields_are_unknown(put, dtype, rng, check):
    q, k = (put(sample(rng, 2, 3, n, 8, dtype=dtype)) for n in (4, 2))
    fused, weight = put(sample(rng, 2, 3, 6, 8, dtype=dtype)), put(sample(rng, 8, dtype=dtype))
    parts, norm = (fused[:, :, :4], fused[:, :, 4:]), QKNorm(weight, weight)
    check(lambda: HALF.apply(q, k, put(np.array([5, 70_000, 7]))))
    check(lambda: HALF.apply(*parts, [5, 6, 7], norm=norm))
    check(lambda: look_up(HALF, put(np.array([5.5, 6.0, 1e6])), q))
    frozen = np.ones((3, 2, 8), dtype)
    frozen.setflags(write=False)
    with pytest.raises(RopeError, match="read-only"):
        HALF.rotate(frozen, out=frozen)
    same(np.asarray(HALF.rotate(frozen)), truth(HALF.rotate, frozen))
    shifted = np.zeros(3 * 16 * 8 + 1, np.uint8)[1:].view(dtype)[: 3 * 16].reshape(3, 2, 8)
    same(HALF.rotate(shifted), truth(HALF.rotate, shifted))


def test_arrays_that_lie_in_any_way_are_right(put, rng):
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


def test_calls_in_place_check_overlap(put, rng):
    fused = put(sample(rng, 1, 3, 6, 8))
    q, k = fused[:, :, :4], fused[:, :, 4:]
    for _ in range(4):
        expected = truth(HALF.apply, *(np.asarray(x).copy() for x in (q, k)), [1, 2, 3])
        results = HALF.apply(q, k, [1, 2, 3], out=(q, k))
        assert (results[0] is q, results[1] is k) == (True, True)
        same((np.asarray(q), np.asarray(k)), expected)
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


def test_what_may_be_wrong_is_refused_as_on_the_slow_path(put, monkeypatch):
    """The entry leaves it to Python, before anything is written."""
    q, k = put(np.ones((2, 3, 4, 8), np.float32)), put(np.ones((2, 3, 2, 8), np.float32))
    cos, sin = (put(np.asarray(t)) for t in HALF.cos_sin([1, 2, 3], 8))
    both, wide = put(np.ones((2, 3, 4, 9), np.float32)), put(np.ones((2, 3, 2, 8)))
    twice, once = put(np.ones((2, 2, 3), np.int64)), put(np.array([5]))
    bad: list[Callable[[], Any]] = [
        lambda: HALF.apply(q, None),
        lambda: HALF.apply(q, [1.0]),
        lambda: HALF.apply(q, k[:, :2]),
        lambda: HALF.apply(both, both),
        lambda: HALF.apply(q, k, [1, 2]),
        lambda: HALF.apply(q, k, [5]),
        lambda: HALF.apply(q, k, 5),
        lambda: HALF.apply(q, k, once),
        lambda: HALF.apply(q, k, twice),
        lambda: HALF.apply(q, k, [True, False, True]),
        lambda: HALF.apply(q, k, [1 << 31, 0, 0]),
        lambda: HALF.apply(q, k, [1 << 70, 0, 0]),
        lambda: HALF.apply(q, k, [float("nan"), 0.5, 0.5]),
        lambda: HALF.apply(q, k, ["a", "b", "c"]),
        lambda: HALF.apply(q, k, k_positions=[1]),
        lambda: HALF.apply(q, k, axes="bhsd"),
        lambda: HALF.apply(q, k, axes="bssd"),
        lambda: HALF.apply(q, k, axes="bshD"),
        lambda: HALF.apply(q, k, axes="bsh"),
        lambda: HALF.apply(q, k, axes="abcd"),
        lambda: HALF.apply(q, k, axes=list("bshd")),
        lambda: HALF.apply(q, k, out=q),
        lambda: HALF.apply(q, k, out=(q, q)),
        lambda: HALF.apply(q, k, out=(q, wide)),
        lambda: HALF.apply(q, k, out=(q, q[:, :, :2])),
        lambda: HALF.apply(q, k, norm=3),
        lambda: HALF.apply(q, k, norm=QKNorm(put(np.ones(7, np.float32)))),
        lambda: HALF.rotate(q, norm=(put(np.ones(8, np.float32)), -1.0)),
        lambda: HALF.rotate(q, norm=(put(np.ones(8, np.float32)), "1")),
        lambda: RoPE(rotary_dim=10).apply(q, k),
        lambda: RoPE(rotary_dim=6, rotary_offset=4).apply(q, k),
        lambda: RoPE(rotary_dim=6, rotary_offset=-9).apply(q, k),
        lambda: RoPE(position_axes=(0, 1, 1, 0)).apply(q, k, [1, 2, 3]),
        lambda: RoPE(position_axes=(0, 1, 1)).apply(q, k, put(np.ones((2, 3), np.int64))),
        lambda: RoPE(base=1e-9).apply(q, k, [0.5, 1.5, 2.5]),
        lambda: HALF.with_tables(cos[:, :2], sin[:, :2]).apply(q, k),
        lambda: HALF.with_tables(cos[:1], sin[:1]).apply(q, k),
        lambda: rope_xp.Angles(cos, sin, RoPE(position_axes=(0, 1, 1))).apply(q, k),
        lambda: rope_xp.apply_tables(q, cos, sin[:, :2]),
        lambda: rope_xp.apply_tables(q, cos[:2], sin[:2]),
        lambda: rope_xp.apply_tables(q, cos[0], sin[0]),
        lambda: rope_xp.apply_tables(q, cos, sin, layout=["half"]),
        lambda: rope_xp.apply_tables(q, cos, sin, layout="halves"),
        lambda: rope_xp.apply_tables(q, cos, sin, rotary_offset=True),
        lambda: rope_xp.apply_tables(q, cos, sin, rotary_offset=0.0),
        lambda: rope_xp.apply_tables(q, cos, sin, rotary_offset=1),
        lambda: rope_xp.apply_tables(q, *rope_tables(put)),
        lambda: HALF.at([1 << 31], like=q),
        lambda: HALF.at(None, like=q),
        lambda: HALF.at([1], like=q, head_dim=7),
        lambda: HALF.at([1], like=q, head_dim=0),
        lambda: HALF.at([1], like=q, head_dim=True),
        lambda: HALF.at([1], like=put(np.ones((2, 8), np.int64))),
    ]
    for number, call in enumerate(bad):
        expected = refusal_of(call)
        with monkeypatch.context() as patch:
            decline_all(patch)
            assert refusal_of(call) == expected, number
    for x in (q, k, both, wide):
        assert np.asarray(x).min() == np.asarray(x).max() == 1


def refusal_of(call: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises((RopeError, TypeError)) as error:
        call()
    return type(error.value), str(error.value)


def rope_tables(put: Callable[[np.ndarray], Any]) -> list[Any]:
    """Return tables that hold each angle twice."""
    return [put(np.concatenate([t, t], -1)) for t in HALF.cos_sin([1, 2, 3], 4)]


def test_forced_paths_and_read_only_results_are_obeyed(put, monkeypatch):
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


def test_a_rope_outlives_its_tables(put):
    x, positions, expected = put(np.ones((1, 2, 4, 8), np.float32)), put(np.array([3, 4])), None
    for head_dim in (*range(2, 30, 2), 8):  # more than a rope has handles for
        y = HALF.rotate(put(np.ones((1, 2, 4, head_dim), np.float32)), positions)
        assert y.shape[-1] == head_dim
    expected = truth(HALF.rotate, x, positions)
    for _ in range(3):
        np.testing.assert_array_equal(HALF.rotate(x, positions), expected)
        rope_xp.clear_caches()


def test_handles_are_no_part_of_a_rope(put):
    """They are not compared, hashed, shown, copied, pickled or replaced."""
    used, new = RoPE(base=7.0), RoPE(base=7.0)
    used.rotate(put(np.ones((2, 8), np.float32)))
    assert hasattr(used, "_handles")
    assert (used, hash(used), repr(used)) == (new, hash(new), repr(new))
    copies = copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used))
    for other in (*copies, dataclasses.replace(used, layout="half"), used.for_length(5)):
        assert other is used or not hasattr(other, "_handles")


@pytest.mark.usefixtures("small_heap")
def test_calls_hold_no_arrays(put):
    def refer_to_arrays() -> list[Any]:
        q, k = (put(np.ones((1, 2, n, 8), np.float32)) for n in (2, 1))
        positions = put(np.arange(2))
        norm, angles = QKNorm(*(put(np.ones(8, np.float32)) for _ in "qk")), HALF.at([0, 1], like=q)
        for _ in range(3):
            made = [*HALF.apply(q, k, positions, norm=norm), *angles.apply(q, k)]
        held = [q, k, positions, norm.q_weight, norm.k_weight, angles.cos, angles.sin, *made]
        return [weakref.ref(x) for x in held]

    references = refer_to_arrays()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


# --- what torch's dispatcher would have seen to --------------------------------------------------


@pytest.fixture(params=[[1, 2, 3], None], ids=["list", "tensor"])
def rotate(request):
    """Return a function that rotates tensors, as the entry does if nothing is unusual."""
    torch = pytest.importorskip("torch")
    positions = request.param or torch.tensor([1, 2, 3])
    return lambda x, **options: HALF.rotate(x, positions, **options)


def test_gradients_modes_and_transforms_are_right(rotate):
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


def test_calls_in_place_tell_autograd_and_refuse_inference_tensors(rotate):
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


def test_calls_in_place_under_inference_mode_are_taken(monkeypatch):
    torch = pytest.importorskip("torch")
    plain = torch.ones(1, 1, 2, 8)
    with torch.inference_mode():
        x, position = torch.ones(1, 1, 2, 8), torch.tensor([5])
        run_both_ways(lambda: HALF.apply(x, plain, position, out=(x, plain)), monkeypatch)
    assert plain._version == 2


def test_gradients_are_recorded_at_once(monkeypatch):
    torch = pytest.importorskip("torch")
    q, k = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (4, 2))
    position, angles = torch.tensor([1, 2, 3]), HALF.at([1, 2, 3], like=q)
    for apply in (lambda: HALF.apply(q, k, position), lambda: angles.apply(q, k)):

        def train(apply=apply):
            (rotated_q, rotated_k), used = apply(), torch.arange(8.0)
            losses = (rotated_q * used).sum() + (rotated_k * used).sum(), (rotated_k * used).sum()
            return tuple(torch.autograd.grad(loss, k, retain_graph=True)[0] for loss in losses)

        slow, at_once = run_both_ways(train, monkeypatch)
        for got, expected in zip(at_once, slow, strict=True):
            assert torch.equal(got, expected)


def test_a_scaling_that_changes_is_read_again():
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


@pytest.mark.parametrize("positions", [[5], [5.5], [5, 6, 7]])
def test_functional_positions_are_taken(positions):
    torch = pytest.importorskip("torch")
    x = torch.randn(1, len(positions), 2, 8)
    expected = [HALF.rotate(x, torch.tensor(positions)) for _ in range(3)][-1]
    functional = torch._to_functional_tensor(torch.tensor(positions))
    assert torch.equal(torch._from_functional_tensor(HALF.rotate(x, functional)), expected)


def test_compiled_code_does_not_see_the_entry():
    """Dynamo cannot trace it, nor guard on what it keeps."""
    torch = pytest.importorskip("torch")
    x, positions = torch.randn(1, 2, 1, 8), torch.tensor([3, 4])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, p: HALF.rotate(x, p), backend="eager", fullgraph=True)
    compiled(x, positions)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for heads in (3, 4, 5):
            HALF.rotate(torch.ones(1, 2, heads, 8), positions)
            compiled(x, positions)


@pytest.mark.parametrize("learns", ["q", "k"])
def test_q_and_k_that_do_not_fit_are_refused_where_one_learns(learns):
    torch = pytest.importorskip("torch")
    q, k = torch.ones(2, 3, 4, 8), torch.ones(3, 3, 2, 8)
    (q if learns == "q" else k).requires_grad_()
    for options in ({}, {"k_positions": [1, 2, 3]}):
        with pytest.raises(RopeError, match="differ in"):
            HALF.apply(q, k, [1, 2, 3], **options)
    with pytest.raises(RopeError, match="differ in"):
        HALF.apply(q, torch.ones(2, 4, 2, 8), [1, 2, 3])
    angles = np.ones((3, 4))
    with pytest.raises(RopeError, match="differ in"):
        rope_xp.apply_angles(np.ones((2, 3, 4, 8)), np.ones((3, 3, 2, 8)), angles, k_angles=angles)
