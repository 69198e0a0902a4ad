"""slots=: keys in slots of a cache move, new ones are written, and all others stay as they are."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.targets import TARGETS, numpy_dtype, rows, truth
from support.ways import run_both_ways

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._dispatch import find

ROPE = RoPE(layout="half", rotary_dim=8)
SLOTS = [7, 0, 3]
OLD, NEW = [100, 70_000, 5], [4, 69_904, 1_000_000]
AXES = {"shd": (9, 2, 12), "bhsd": (2, 2, 9, 12)}


@pytest.mark.parametrize(("where", "axes"), [("host", "shd"), ("device", "bhsd")])
def test_rerotate_with_slots_moves_these_and_no_others(backend, axes, where, rng):
    cache, axis = sample(rng, *AXES[axes]), axes.index("s")
    x, slots = backend.make(cache), np.array(SLOTS, np.int32)

    def rerotate(x: Any, on_device: Any) -> Any:
        given = slots if where == "host" else on_device
        return ROPE.rerotate(x, OLD, NEW, slots=given, axes=axes)

    moved = backend.back(backend.run(rerotate, x, backend.make(slots)))
    old, new = np.zeros((2, 9), int)
    old[SLOTS], new[SLOTS] = OLD, NEW
    expected = truth(ROPE.rerotate, cache.astype(np.float64), old, new, axes=axes)
    # In float64 and rounded once; without it, off by two tables.
    assert np.abs(moved - expected).max() < (2.0**-22 if "float64" in backend.floats else 2e-6)
    others = (np.delete(y, SLOTS, axis=axis) for y in (moved, cache))
    np.testing.assert_array_equal(*others)
    np.testing.assert_array_equal(backend.back(x), cache)
    empty = np.zeros(0, np.int64)
    unmoved = backend.run(lambda x: ROPE.rerotate(x, empty, empty, slots=empty, axes=axes), x)
    np.testing.assert_array_equal(backend.back(unmoved), cache)


WRITING = ("numpy-native", "array-api-strict", "torch", "torch-native", "torch:gpu", "cupy")


@pytest.mark.parametrize("backend", rows(WRITING))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_rerotate_with_slots_writes_in_place_and_into_other_memory(backend, dtype, rng):
    if dtype not in backend.floats:
        pytest.skip(f"{backend} is not tested with {dtype}")
    cache = sample(rng, 9, 2, 12, dtype=dtype)
    expected = backend.back(ROPE.rerotate(backend.make(cache), OLD, NEW, slots=SLOTS))
    x, other = backend.make(cache), backend.make(np.zeros_like(cache))
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=other) is other
    np.testing.assert_array_equal(backend.back(x), cache)
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=x) is x
    for written in (x, other):
        np.testing.assert_array_equal(backend.back(written), expected)


def test_rerotate_with_slots_moves_keys_to_another_rope(rng):
    raw, to = rng.standard_normal((9, 2, 12)), RoPE(base=5e5, layout="half", rotary_dim=8)
    cache = ROPE.rotate(raw, np.arange(9))
    moved = ROPE.rerotate(cache, SLOTS, NEW, slots=SLOTS, to=to)
    np.testing.assert_allclose(moved[SLOTS], to.rotate(raw[SLOTS], NEW), rtol=0, atol=1e-13)


ERRORS: dict[str, dict[str, Any]] = {
    "below 9, the tokens of x": {"slots": [7, 0, 9]},
    "holds the same slot twice": {"slots": [7, 0, 7]},
    "slots must be integers with one axis": {"slots": [[7, 0, 3]]},
    "old_positions has shape": {"old_positions": [1, 2]},
    "must lie between": {"new_positions": [1, 2, 1 << 31]},
    "to rotates other|same pairs": {"to": RoPE()},
    "read-only": {},
}


@pytest.mark.parametrize("message", ERRORS)
def test_rerotate_refuses_bad_slots_and_writes_nothing(message):
    cache = np.ones((9, 2, 12), np.float32)
    cache.setflags(write=message != "read-only")
    options: dict[str, Any] = {"old_positions": OLD, "new_positions": NEW, "slots": SLOTS}
    with pytest.raises(RopeError, match=message):
        ROPE.rerotate(cache, **(options | ERRORS[message]), out=cache)
    assert (cache == 1).all()


def test_rerotate_with_slots_has_the_gradients_of_moved_keys():
    torch = pytest.importorskip("torch")
    cache = torch.randn(9, 2, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ROPE.rerotate(x, OLD, NEW, slots=SLOTS), cache)


# --- new keys, rotated into slots ----------------------------------------------------------------

# cache_axes, and the letters that they stand for: one cache, pages, or a row for each sequence.
CACHES = {"slots": (None, "shd"), "pages": (None, "pshd"), "heads first": ("hsd", "hsd")}
CACHES |= {names: (names, names) for names in ("phsd", "bshd", "bhsd", "sbhd")}
WHERE = [
    *(("shd", "slots"), ("bshd", "slots"), ("bhsd", "slots"), ("bshd", "pages"), ("sbhd", "pages")),
    *(("bhsd", "heads first"), ("bshd", "phsd"), ("shd", "bshd"), ("bhsd", "bshd")),
    *(("bshd", "bhsd"), ("sbhd", "bhsd"), ("sbhd", "sbhd")),
]
CHOSEN = {"slice": range(4, 10), "apart": [9, 0, 7, 8, 15, 3], "shared": [9, 0, 7, 8, 15, 3]}
CHOSEN |= {"padded": [-1, 6, -1, 0, 9, -1], "all padded": [-1] * 6}


def lay_out(names: str, batch: int, heads: int, head_dim: int = 12) -> tuple[int, ...]:
    """Return the shape of a cache."""
    slots = {"s": 8} if "b" in names else {"s": 4, "p": 4} if "p" in names else {"s": 16}
    return tuple(({"b": batch, "h": heads, "d": head_dim} | slots)[name] for name in names)


def choose(chosen: str, names: str, axes: str) -> np.ndarray:
    """Return slots of two sequences of three keys, or of one, in a cache."""
    slots = np.array(CHOSEN[chosen], np.int32).reshape(2, 3)
    if "b" in names:
        slots = np.where(slots < 0, slots, slots % 8)
    return slots[0] if "b" not in axes or ("b" in names and chosen == "shared") else slots


def fill(cache: np.ndarray, names: str, k: np.ndarray, slots: np.ndarray, axes: str) -> np.ndarray:
    """Assign each key by the letters of the cache, in the order that a reader would write."""
    filled, page = cache.copy(), cache.shape[names.index("s")]
    k = k if "b" in axes else k[None]
    k = np.moveaxis(k, [(axes if "b" in axes else "b" + axes).index(n) for n in "bshd"], range(4))
    for (b, s), slot in np.ndenumerate(np.broadcast_to(slots, k.shape[:2])):
        where = {"b": b, "p": slot // page, "s": slot % page if "p" in names else slot}
        if slot >= 0:
            filled[tuple(where.get(n, slice(None)) for n in names)] = k[b, s]
    return filled


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS[1:])))  # 0 is read-only
@pytest.mark.parametrize(("axes", "cache"), WHERE)
@pytest.mark.parametrize("padded", [False, True])
def test_apply_with_slots_equals_rotate_and_assign(backend, axes, cache, padded, rng, monkeypatch):
    (cache_axes, names), sizes = CACHES[cache], {"b": 2, "s": 3, "d": 12}
    q, k = (sample(rng, *map((sizes | {"h": heads}).get, axes)) for heads in (4, 2))
    before = sample(rng, *lay_out(names, 2 if "b" in axes else 1, 2))
    library = find.require_backend(backend.make(k), "k")
    rotate = partial(ROPE.apply, positions=OLD, axes=axes)

    def apply(q: Any, k: Any, keys: Any, on_device: Any, on_host: Any) -> Any:
        given = on_device if on_host is None else on_host
        return rotate(q, k, out=(None, keys), slots=given, cache_axes=cache_axes)

    rotated = [*map(backend.back, backend.run(rotate, backend.make(q), backend.make(k)))]
    if padded:  # no value of slots may be read
        monkeypatch.setattr(type(library), "host_view", lambda *_: None)
    for chosen in ("padded", "all padded") if padded else ("slice", "apart", "shared"):
        slots, keys = choose(chosen, names, axes), backend.make(before)
        call = partial(apply, on_host=slots if chosen == "slice" else None)
        got = backend.run(call, *map(backend.make, (q, k)), keys, backend.make(slots))
        expected = fill(before, names, rotated[1], slots, axes)
        same(backend.back(got[0]), rotated[0])
        same(backend.back(got[1]), expected)
        same(backend.back(keys), before if library.out_refusal else expected)


KINDS = ("plain", "bfloat16", "float64", "norm", "angles", "k_positions", "in place", "numpy slots")


@pytest.mark.parametrize("backend", rows(("numpy-native", "torch-native")))
@pytest.mark.parametrize(("axes", "cache"), WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_apply_with_slots_by_the_entry_has_the_bits_of_the_slow_path(
    backend, axes, cache, kind, rng, monkeypatch
):
    (cache_axes, names), sizes = CACHES[cache], {"b": 2, "s": 3, "d": 32}
    dtype = kind if kind in ("bfloat16", "float64") else "float32"
    q, k = (sample(rng, *map((sizes | {"h": n}).get, axes), dtype=dtype) for n in (4, 2))
    before = sample(rng, *lay_out(names, 2 if "b" in axes else 1, 2, 32), dtype=dtype)
    x, y, positions, weight = map(backend.make, (q, k, np.array(OLD), sample(rng, 32)))
    options: dict[str, Any] = {"axes": axes}
    options |= {"norm": rope_xp.QKNorm(weight, weight)} if kind == "norm" else {}
    options |= {"k_positions": backend.make(np.array(NEW))} if kind == "k_positions" else {}
    angles = ROPE.at(positions, like=x)
    apply = angles.apply if kind == "angles" else partial(ROPE.apply, positions=positions)
    rotated = backend.back(apply(x, y, **options)[1])
    for chosen in ("apart", "padded", "shared"):
        slots = choose(chosen, names, axes)
        given = slots if kind == "numpy slots" else backend.make(slots)

        def call(slots: Any = given) -> tuple[np.ndarray, ...]:
            out = (backend.make(q * 0) if kind == "in place" else None), backend.make(before)
            got = apply(x, y, out=out, slots=slots, cache_axes=cache_axes, **options)
            assert got[1] is out[1]
            assert out[0] is None or got[0] is out[0]
            return backend.back(got[0]).copy(), backend.back(got[1]).copy()

        by_slow_path, at_once = run_both_ways(call, monkeypatch)
        same(at_once, by_slow_path)
        same(at_once[1], fill(before, names, rotated, slots, axes))


STRANGE = {
    "reversed": lambda cache: cache[::-1],
    "beside values": lambda cache: np.stack([cache, cache], 1)[:, 0],
    "every other head": lambda cache: np.repeat(cache, 2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("strides", STRANGE)
def test_apply_with_slots_writes_a_cache_where_it_lies(strides, rng, monkeypatch):
    q, k = (sample(rng, 1, 5, n, 12) for n in (4, 2))
    first, slots = sample(rng, 16, 2, 12), [9, 0, -1, 15, 3]

    def call() -> np.ndarray:
        cache = STRANGE[strides](first.copy())
        ROPE.apply(q, k, slots=slots, out=(None, cache))
        return cache

    by_slow_path, at_once = run_both_ways(call, monkeypatch)
    same(at_once, by_slow_path)
    changed = np.flatnonzero((at_once != STRANGE[strides](first)).any((1, 2)))
    assert changed.tolist() == [0, 3, 9, 15]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_angles_apply_with_slots_takes_tables_of_heads_and_keys_in_the_cache(library, rng):
    q, cache = sample(rng, 1, 3, 4, 12), sample(rng, 16, 2, 12)
    put = np.array if library == "numpy" else pytest.importorskip("torch").tensor
    angles = ROPE.with_tables(*map(put, sample(rng, 2, 1, 3, 2, 4)))
    keys, expected = put(cache), cache.copy()
    expected[[7, 0, 9]] = np.asarray(angles.rotate(put(cache[None, 2:5])))[0]
    angles.apply(put(q), keys[2:5][None], slots=[7, 0, 9], out=(None, keys))
    same(np.asarray(keys), expected)


def test_apply_takes_many_slots_and_few_are_compared(rng):
    """The names of these tests choose what sanitizers run: see tests/backends/cpu."""
    q, cache = sample(rng, 65, 2, 12), np.zeros((70, 2, 12), np.float32)
    slots = np.arange(65)
    slots[-1] = 0
    with pytest.raises(RopeError, match="the same slot twice"):
        ROPE.apply(q[:64], q[:64], slots=slots[-64:] * 0, out=(None, cache))
    assert not cache.any()
    ROPE.apply(q, q, slots=slots, out=(None, cache))
    same(cache[1:64], ROPE.rotate(q)[1:64])


def test_apply_with_slots_beyond_a_sequence_leaves_the_next_alone():
    jax = pytest.importorskip("jax")
    q, cache = jax.numpy.ones((2, 1, 2, 12)), jax.numpy.zeros((2, 4, 2, 12))

    @jax.jit
    def apply(slots: Any) -> Any:
        return ROPE.apply(q, q, [[0], [0]], out=(None, cache), slots=slots, cache_axes="bshd")[1]

    for slots, written in (([[4], [-1]], []), ([[3], [0]], [3, 4])):
        keys = np.asarray(apply(jax.numpy.array(slots)))
        assert np.flatnonzero(keys.any((2, 3))).tolist() == written


Q, K, CACHE = (np.ones((*shape, 12), np.float32) for shape in ((1, 3, 4), (1, 3, 2), (16, 2)))
ERRORS_OF_APPLY: dict[str, dict[str, Any]] = {
    r"slots= needs out=\(q, k_cache\)": {"out": None},
    r"below 16, the slots of out\[1\], or -1 for padding; got -2 to 4": {"slots": [3, 4, -2]},
    "got 3 to 16": {"slots": [3, 4, 16]},
    "slots holds the same slot twice": {"slots": [3, 4, 3]},
    r"slots must be integers of shape \(1, 3\)": {"slots": [[3], [4], [5]]},
    r"like k, of numpy and float32: \(slots, 2, 12\) or": {"out": (Q, CACHE[:, :1])},
    "float64; slots= needs a key cache": {"out": (Q, CACHE.astype("f8"))},
    r"out\[1\] is read-only; pass a writeable array$": {
        "out": (Q, np.broadcast_to(CACHE[0], CACHE.shape))
    },
    r"out\[0\] is .* the result for q": {"out": (K, CACHE)},
    r"out\[0\] and out\[1\] overlap": {"out": (CACHE.reshape(-1)[:144].reshape(Q.shape), CACHE)},
    "positions has shape": {"positions": [1, 2]},
    r"\(1, slots, 2, 12\), as cache_axes='bshd'": {
        "out": (Q, CACHE.reshape(2, 8, 2, 12)),
        "cache_axes": "bshd",
    },
    "must be >= 0 and below 4, the slots of": {"out": (Q, CACHE[None, :4]), "cache_axes": "bshd"},
    r"cache_axes='bshd' names 4 axes; out\[1\] has 3": {"cache_axes": "bshd"},
    "cache_axes='shx' has no head_dim axis": {"cache_axes": "shx"},
    "cache_axes= names the axes of a cache, and needs slots=": {"cache_axes": "shd", "slots": None},
}


@pytest.mark.parametrize("message", ERRORS_OF_APPLY)
def test_apply_refuses_bad_slots_and_writes_nothing(message):
    options: dict[str, Any] = {"slots": [3, 4, 5], "out": (Q, CACHE), "positions": [1, 2, 3]}
    with pytest.raises((RopeError, TypeError), match=message):
        rope_xp.apply(Q, K, **(options | ERRORS_OF_APPLY[message]))
    assert all((x == 1).all() for x in (Q, K, CACHE))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("slots", [[3, 4, 5], [4, 5, 6], [2, 3, 4], [5, 3, 4]], ids=str)
def test_apply_with_slots_takes_keys_in_the_cache_and_refuses_queries_there(library, slots, rng):
    q, before = Q.copy(), sample(rng, *CACHE.shape)
    cache, expected = before.copy(), before.copy()
    if library == "torch":
        q, cache = map(pytest.importorskip("torch").from_numpy, (q, cache))
    rope_xp.apply(q, cache[3:6][None], [7, 8, 9], slots=slots, out=(None, cache))
    expected[slots] = RoPE().rotate(before[3:6], [7, 8, 9])
    same(np.asarray(cache), expected)
    held = cache.reshape(-1)[: Q.size].reshape(Q.shape)
    with pytest.raises(RopeError, match=r"out\[1\] overlaps q; pass an array that shares no mem"):
        rope_xp.apply(held, cache[9:12][None], slots=slots, out=(None, cache))


def test_apply_refuses_bad_slots_of_torch_and_jax_and_writes_nothing():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    (q, k, cache), x = map(torch.tensor, (Q, K, CACHE)), jnp.asarray(Q)
    for message, arrays, out, slots in (
        ("slots holds the same slot twice", (q, k), (q, cache), torch.tensor([3, 3, 4])),
        ("autograd cannot follow out=", (q, k.clone().requires_grad_()), (None, cache), [3, 4, 5]),
        (r"out\[1\] is a numpy array", (q, k), (q, CACHE), [3, 4, 5]),
        (r"out\[0\] must be None or q .*jax", (x, x), (x + 1, jnp.ones((16, 4, 12))), [3, 4, 5]),
    ):
        with pytest.raises((RopeError, TypeError), match=message):
            ROPE.apply(*arrays, out=out, slots=slots)
    assert all((x == 1).all() for x in (q, k, cache))


# --- moved again and again -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "step", "moves", "in_slots", "bound"),
    [
        ("float32", -1, 1000, True, 1e-5),  # turned in float64, which leaves one rounding a move
        ("float32", -1, 1000, False, 1e-4),
        ("bfloat16", -1000, 1, True, 2.0**-8),  # which a thousand little turns would lose
    ],
)
def test_rerotate_keeps_errors_of_many_moves_small(dtype, step, moves, in_slots, bound, rng):
    """Of the largest key, against one rotation."""
    rope, positions = RoPE(layout="half"), 1_000_000 + np.arange(32)
    raw = rng.standard_normal((32, 2, 128)).astype(numpy_dtype(dtype))
    keys = rope.rotate(raw, positions)
    options = {"slots": np.arange(32), "out": keys} if in_slots else {}
    for _ in range(moves):
        keys = rope.rerotate(keys, positions, positions + step, **options)
        positions = positions + step
    expected = rope.rotate(raw.astype(np.float64), positions)
    assert np.abs(keys.astype(np.float64) - expected).max() <= bound * np.abs(expected).max()
