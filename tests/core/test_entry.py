"""The native entry: which calls it takes, and that it leaves all others as they were."""

import copy
import ctypes
import dataclasses
import gc
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.targets import truth
from support.ways import run_both_ways

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError, scaling
from rope_xp._rotation import portable

pytest.importorskip("rope_xp_backends.cpu._native")

HALF = RoPE(layout="half")


@pytest.fixture(params=["numpy", "torch"])
def put(request) -> Callable[[np.ndarray], Any]:
    if request.param == "numpy":
        return np.array
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
def test_apply_and_rotate_by_the_entry_have_the_bits_of_the_slow_path(
    put, axes, rope, dtype, rng, check
):
    lead = (2,) if rope.position_axes else ()
    for tokens, batch in ((1, 1), (2, 2)):
        q, k = (put(sample(rng, *shape, 8, dtype=dtype)) for shape in lay_out(axes, batch, tokens))
        whole = rng.integers(-9000, 1 << 30, (*lead, tokens))
        batched = rng.integers(-9000, 1 << 30, (*lead, batch, tokens))
        given: list[Any] = [None, whole, whole.astype(np.int32), put(whole.astype(np.int32))]
        parts = whole / -3e5  # of negative positions too
        given += [put(whole), put(batched), parts, put(parts.astype(np.float32))]
        given += [whole.tolist(), tuple(whole.tolist())]
        given += [] if lead else [range(5, 5 + tokens), *[7] * (tokens == 1)]
        for p in given:
            out = tuple(put(np.asarray(x)) for x in (q, k))
            check(lambda p=p, q=q, k=k: rope.apply(q, k, p, axes=axes))
            check(lambda p=p, q=q, k=k, out=out: rope.apply(q, k, p, axes=axes, out=out))
            check(lambda p=p, q=q: rope.rotate(q, p, axes=axes))
            check(lambda p=p, q=q: rope.unrotate(q, p, axes=axes))
            for own in (whole, whole.tolist()):
                check(lambda p=p, q=q, k=k, w=own: rope.apply(q, k, p, axes=axes, k_positions=w))
            if p is not None:
                check(lambda p=p, q=q: look_up(rope, p, q))


def lay_out(axes: str | None, batch: int, tokens: int) -> list[tuple[int, ...]]:
    sizes = {"b": batch, "s": tokens}
    return [tuple(sizes.get(a, heads) for a in (axes or "bshd")[:-1]) for heads in (4, 2)]


def look_up(rope: RoPE, positions: Any, like: Any) -> tuple[Any, ...]:
    angles = rope.at(positions, like=like)
    return angles.cos, angles.sin, *(angles.inverse or ())


def test_angles_and_norms_by_the_entry_have_the_bits_of_the_slow_path(put, rng, check):
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
    wide = [t.astype(np.float64) for t in tables]
    for given, offset in (tables, 0), (wide, 0), ([t[:, :2] for t in tables], -4):
        for inverse in (False, True):
            options = {"inverse": inverse, "rotary_offset": offset}
            check(lambda t=given, o=options: rope_xp.apply_tables(q, *map(put, t), **o))


@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_apply_tables_of_each_head_by_the_entry_has_the_bits_of_the_slow_path(
    put, axes, heads, rng, check
):
    q, k = (put(sample(rng, *shape, 8)) for shape in lay_out(axes, 2, 3))
    k = q if heads == 4 else k
    for lead, width in ((2, 4), (1, 4), (2, 3)):
        cos, sin = (put(sample(rng, lead, 3, heads, width)) for _ in "cs")
        options = {"axes": axes, "layout": "half"}
        check(lambda c=cos, s=sin, o=options: rope_xp.apply_tables(q, c, s, **o))
        check(lambda c=cos, s=sin, o=options: rope_xp.apply_tables(q, c, s, inverse=True, **o))
        if width == 4:
            angles = HALF.with_tables(cos, sin)
            check(lambda a=angles: a.apply(q, k, axes=axes))
            out = tuple(put(np.asarray(x)) for x in (q, k))
            check(lambda a=angles, o=out: a.apply(q, k, axes=axes, out=o))


def test_apply_by_the_entry_takes_lists_of_results_steps_and_two_dtypes(put, rng, check):
    q, k = (put(sample(rng, 2, 3, heads, 8)) for heads in (4, 2))
    narrow, stepped = put(sample(rng, 2, 3, 2, 8, dtype="float16")), put(sample(rng, 2, 3, 4, 16))
    check(lambda: HALF.apply(q, k, [5, 6, 7], out=[put(np.asarray(x)) for x in (q, k)]))
    check(lambda: HALF.apply(q, narrow, [5, 6, 7]))
    check(lambda: HALF.apply(narrow, k, [5, 6, 7], k_positions=[1, 2, 3]))
    check(lambda: HALF.apply(stepped[..., ::2], k, [5, 6, 7]))
    check(lambda: HALF.rotate(stepped[..., 1::2], [5, 6, 7], out=put(np.asarray(q))))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_rerotate_by_the_entry_has_the_bits_of_the_slow_path(put, rope, rng, check):
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
    pytest.importorskip("torch")
    from rope_xp_backends.cpu import entry
    from rope_xp_backends.torch import entry as of_torch
    from rope_xp_backends.torch import private

    older = ctypes.CFUNCTYPE(ctypes.c_uint)(lambda: 0x1000009)  # the ABI of numpy 1
    functions = (ctypes.c_void_p * 1)(ctypes.cast(older, ctypes.c_void_p))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    assert not entry.set_up_numpy(make(ctypes.addressof(functions), None, None))
    assert not of_torch.set_up(None)
    yield
    assert entry.set_up_numpy(entry.C_API)
    of_torch.set_up(private.dlpack_exchange)


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_apply_describes_arrays_whose_fields_are_unknown(put, dtype, rng, check):
    q, k = (put(sample(rng, 2, 3, n, 8, dtype=dtype)) for n in (4, 2))
    fused, weight = put(sample(rng, 2, 3, 6, 8, dtype=dtype)), put(sample(rng, 8, dtype=dtype))
    parts, norm = (fused[:, :, :4], fused[:, :, 4:]), QKNorm(weight, weight)
    check(lambda: HALF.apply(q, k, put(np.array([5, 70_000, 7]))))
    check(lambda: HALF.apply(*parts, [5, 6, 7], norm=norm))
    check(lambda: look_up(HALF, put(np.array([5.5, 6.0, 1e6])), q))
    frozen = np.ones((3, 2, 8), dtype)
    frozen.setflags(write=False)
    shifted = np.zeros(3 * 16 * 8 + 1, np.uint8)[1:].view(dtype)[: 3 * 16].reshape(3, 2, 8)
    for x in (frozen, shifted):
        same(HALF.rotate(x), truth(HALF.rotate, x))
    with pytest.raises(RopeError, match="read-only"):
        HALF.rotate(frozen, out=frozen)


@pytest.mark.parametrize("bad", [1 << 31, -(1 << 31), -(1 << 63)])
@pytest.mark.parametrize("tokens", [3, 4096])  # which the kernel takes in one part, or in several
@pytest.mark.parametrize("axes", [None, (0, 1) * 16])
def test_rotate_refuses_positions_out_of_range_before_it_writes(put, bad, tokens, axes):
    x = put(np.ones((1, tokens, 3, 64), np.float32))
    positions = np.array([np.arange(tokens)] * 2) if axes else np.arange(tokens)
    positions[..., -1] = bad
    with pytest.raises(RopeError, match="positions must lie between"):
        RoPE(layout="half", position_axes=axes).rotate(x, put(positions), out=x)
    assert (np.asarray(x) == 1).all()


REFUSED: dict[str, tuple[str, Any, Any]] = {
    "fractions, .* at most 4096": ("float32", [0.5, 1.0, 2.5], RoPE(base=1e-5)),
    "fractions, .* float64": ("float64", [0.5, 1.0, 2.5], RoPE(base=1e-12)),
    "it needs a leading axis of 2": ("float32", np.ones((3, 3), int), ROPES["components"]),
    "with absolute values below 1.04": ("float32", [0, 1, 2], np.full(4, 2e6, np.float32)),
    "must lie between": ("float32", [1, 2, 1 << 31], np.ones(4, np.float32)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_rotate_and_apply_frequencies_refuse_what_the_entry_cannot_take(message):
    dtype, positions, rope = REFUSED[message]
    x, p = np.ones((1, 3, 1, 8), dtype), np.array(positions)
    call = partial(rope_xp.apply_frequencies, x, x, p, rope, layout="half")
    if isinstance(rope, RoPE):
        call = partial(rope.rotate, x, p, out=x)
    with pytest.raises(RopeError, match=message):
        call()
    assert (x == 1).all()


def test_use_path_is_obeyed_by_the_entry(put, monkeypatch):
    x = put(np.ones((2, 2, 8), np.float32))
    monkeypatch.setattr(portable, "run", lambda _: 1 / 0)
    HALF.rotate(x, [5, 6])
    with rope_xp.use_path("portable"), pytest.raises(ZeroDivisionError):
        HALF.rotate(x, [5, 6])
    with rope_xp.use_path("jit"), pytest.raises(RopeError, match="'jit' was forced"):
        HALF.rotate(x, [5, 6])


def test_rotate_is_right_after_its_tables_are_evicted(put):
    x, positions = put(np.ones((1, 2, 4, 8), np.float32)), put(np.array([3, 4]))
    expected = truth(HALF.rotate, x, positions)
    for head_dim in range(2, 30, 2):  # more than a rope has handles for
        HALF.rotate(put(np.ones((1, 2, 4, head_dim), np.float32)), positions)
    for _ in range(3):
        np.testing.assert_array_equal(HALF.rotate(x, positions), expected)
        rope_xp.clear_caches()


def test_rope_is_compared_copied_and_pickled_without_its_handles(put):
    used, new = RoPE(base=7.0), RoPE(base=7.0)
    used.rotate(put(np.ones((2, 8), np.float32)))
    assert hasattr(used, "_handles")
    assert (used, hash(used), repr(used)) == (new, hash(new), repr(new))
    copies = copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used))
    for other in (*copies, dataclasses.replace(used, layout="half"), used.for_length(5)):
        assert other is used or not hasattr(other, "_handles")


@pytest.mark.usefixtures("small_heap")
def test_apply_holds_no_arrays_after_a_call(put):
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


def test_rotate_of_functional_fake_and_profiled_tensors_is_right():
    """Other transforms are those of tests/backends/torch/test_op_derivatives.py."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, read = torch.randn(1, 3, 2, 8), torch._from_functional_tensor
    for positions in ([1, 2, 3], [0.5, 1.5, 2.5]):
        expected = HALF.rotate(x, positions)
        functional = torch._to_functional_tensor(torch.tensor(positions))
        assert torch.equal(read(HALF.rotate(x, functional)), expected)
        functional = torch._to_functional_tensor(x.clone())
        HALF.rotate(functional, positions, out=functional)
        torch._sync(functional)
        assert torch.equal(read(functional), expected)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(HALF.rotate(torch.empty(2, 3, 2, 8), [1, 2, 3])).__name__ == "FakeTensor"
    with torch.profiler.profile() as profile:
        HALF.rotate(x, [1, 2, 3])
    assert any("rope_xp::rotate" in event.key for event in profile.key_averages())


def test_rotate_in_place_tells_autograd_and_refuses_inference_tensors():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, 2, 8)
    HALF.rotate(x, [1, 2, 3], out=x)
    with torch.inference_mode():
        frozen = x.clone()
        HALF.apply(x, frozen, torch.tensor([1, 2, 3]), out=(x, frozen))
    assert x._version == 2
    with pytest.raises(RopeError, match="inference_mode"):
        HALF.rotate(frozen, [1, 2, 3], out=frozen)


def test_apply_records_gradients_by_the_entry(monkeypatch):
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


@dataclasses.dataclass(unsafe_hash=True)
class Divided(scaling.Scaling):
    by: float

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.ones(rotary_dim // 2) / self.by


def test_rotate_reads_a_scaling_of_a_user_again_as_it_may_change():
    divided, x = Divided(1.0), np.ones((1, 1, 2, 8), np.float32)
    rope = RoPE(scaling=divided)
    for by in (1.0, 2.0):
        divided.by = by
        expected = truth(RoPE(scaling=Divided(by)).rotate, x, [5])
        for _ in range(2):
            same(rope.rotate(x, [5]), expected)


def test_compiled_rotate_does_not_see_the_entry():
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
@pytest.mark.parametrize("options", [{}, {"k_positions": [1, 2, 3]}], ids=str)
def test_apply_refuses_q_and_k_that_do_not_fit_where_one_learns(learns, options):
    torch = pytest.importorskip("torch")
    q, k = torch.ones(2, 3, 4, 8), torch.ones(3, 3, 2, 8)
    (q if learns == "q" else k).requires_grad_()
    with pytest.raises(RopeError, match="differ in"):
        HALF.apply(q, k, [1, 2, 3], **options)
