"""slots=: keys in slots of a cache move, new ones are written, and all others stay as they are."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from support.bits import same, sample
from support.cases import slow
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
def test_slots_move_and_others_stay(backend, axes, where, rng):
    cache, axis = sample(rng, *AXES[axes]), axes.index("s")
    x, slots = backend.make(cache), np.array(SLOTS, np.int32)

    def rerotate(x: Any, on_device: Any) -> Any:
        given = slots if where == "host" else on_device
        return ROPE.rerotate(x, OLD, NEW, slots=given, axes=axes)

    moved = backend.back(backend.run(rerotate, x, backend.make(slots)))
    expected = np.moveaxis(cache.astype(np.float64), axis, 0)
    names = "s" + axes.replace("s", "")
    for slot, old, new in zip(SLOTS, OLD, NEW, strict=True):
        expected[slot] = truth(ROPE.rerotate, expected[[slot]], [old], [new], axes=names)[0]
    # In float64 and rounded once; without it, off by two tables.
    bound = 2.0**-22 if "float64" in backend.floats else 2e-6
    assert np.abs(np.moveaxis(moved, axis, 0) - expected).max() < bound
    others = (np.delete(y, SLOTS, axis=axis) for y in (moved, cache))
    np.testing.assert_array_equal(*others)
    np.testing.assert_array_equal(backend.back(x), cache)
    empty = np.zeros(0, np.int64)
    unmoved = backend.run(lambda x: ROPE.rerotate(x, empty, empty, slots=empty, axes=axes), x)
    np.testing.assert_array_equal(backend.back(unmoved), cache)


WRITING = ("numpy-native", "array-api-strict", "torch", "torch-native", "torch:gpu", "cupy")


@pytest.mark.parametrize("backend", rows(WRITING))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_keys_move_in_place_and_into_other_memory(backend, dtype, rng):
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


def test_keys_move_to_another_rope(rng):
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
def test_bad_slots_of_rerotate_raise_and_write_nothing(message):
    cache = np.ones((9, 2, 12), np.float32)
    cache.setflags(write=message != "read-only")
    options: dict[str, Any] = {"old_positions": OLD, "new_positions": NEW, "slots": SLOTS}
    with pytest.raises(RopeError, match=message):
        ROPE.rerotate(cache, **(options | ERRORS[message]), out=cache)
    assert (cache == 1).all()


def test_gradients_of_moved_keys_equal_differences():
    torch = pytest.importorskip("torch")
    cache = torch.randn(9, 2, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ROPE.rerotate(x, OLD, NEW, slots=SLOTS), cache)


# --- new keys, rotated into slots ----------------------------------------------------------------

TOKENS = {"bshd": (2, 3), "bhsd": (2, 3), "shbd": (2, 3), "shd": (3,)}  # batch first
CACHES = {"slots": (16, 2, 12), "pages": (4, 4, 2, 12)}
NAMED = {"shd": {"s": 16}, "hsd": {"s": 16}, "phsd": {"p": 4, "s": 4}}  # through all pages
NAMED |= {names: {"b": 2, "s": 8} for names in ("bshd", "bhsd", "sbhd")}  # in each sequence
CHOSEN = {"slice": range(4, 10), "apart": [9, 0, 7, 8, 15, 3], "padded": [-1, 6, -1, 0, 9, -1]}
CHOSEN |= {"all padded": [-1] * 6}


def make(rng: Generator, axes: str, cache: str) -> tuple[np.ndarray, ...]:
    sizes = ({"b": 2, "s": 3, "h": heads, "d": 12} for heads in (4, 2))
    return *(sample(rng, *map(n.get, axes)) for n in sizes), sample(rng, *CACHES[cache])


def fill(cache: np.ndarray, k: np.ndarray, slots: np.ndarray, axes: str) -> np.ndarray:
    flat, order = cache.copy().reshape(16, 2, 12), [axes.index(n) for n in "bshd" if n in axes]
    for slot, key in zip(slots.flat, k.transpose(order).reshape(-1, 2, 12), strict=True):
        flat[slot] = key if slot >= 0 else flat[slot]
    return flat.reshape(cache.shape)


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS[1:])))  # 0 is read-only
@pytest.mark.parametrize("axes", TOKENS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("chosen", CHOSEN)
def test_new_keys_equal_rotate_and_assign(backend, axes, cache, chosen, rng, monkeypatch):
    hosts = make(rng, axes, cache)
    q, k, keys = map(backend.make, hosts)
    slots = np.array(CHOSEN[chosen], np.int32)[: np.prod(TOKENS[axes])].reshape(TOKENS[axes])
    library = find.require_backend(k, "k")
    if "padded" in chosen:  # no value of slots may be read
        monkeypatch.setattr(type(library), "host_view", lambda *_: None)

    def apply(q: Any, k: Any, keys: Any, on_device: Any) -> Any:
        given = slots if chosen == "slice" else on_device
        return ROPE.apply(q, k, OLD, axes=axes, out=(None, keys), slots=given)

    got = backend.run(apply, q, k, keys, backend.make(slots))
    rotated = backend.run(lambda q, k: ROPE.apply(q, k, OLD, axes=axes), q, k)
    expected = fill(hosts[2], backend.back(rotated[1]), slots, axes)
    same(backend.back(got[0]), backend.back(rotated[0]))
    same(backend.back(got[1]), expected)
    same(backend.back(keys), hosts[2] if library.out_refusal else expected)


def fill_named(
    cache: np.ndarray, names: str, k: np.ndarray, slots: np.ndarray, axes: str
) -> np.ndarray:
    """Assign each key by the letters of the cache, in the order that a reader would write."""
    filled, page = cache.copy(), NAMED[names]["s"]
    k = np.moveaxis(k, [axes.index(n) for n in "bshd"], range(4))
    for (b, s), slot in np.ndenumerate(np.broadcast_to(slots, (2, 3))):
        where = {"b": b, "p": slot // page, "s": slot % page if "p" in names else slot}
        if slot >= 0:
            filled[tuple(where.get(n, slice(None)) for n in names)] = k[b, s]
    return filled


@pytest.mark.parametrize("backend", rows(tuple(t.name for t in TARGETS[1:])))
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
@pytest.mark.parametrize("names", NAMED)
@pytest.mark.parametrize("chosen", ["host", "shared", "padded"])
def test_new_keys_go_where_letters_of_the_cache_say(backend, axes, names, chosen, rng, monkeypatch):
    sizes = NAMED[names] | {"h": 2, "d": 12}
    cache = sample(rng, *map(sizes.get, names))
    q, k, _ = make(rng, axes, "slots")
    slots = np.array([[5, 2, 7], [0, 7, 5]] if "b" in names else [[5, 2, 7], [0, 13, 8]])
    if chosen == "padded":
        slots[[0, 1], [1, 0]] = -1
    if chosen == "shared" and "b" in names:
        slots = slots[0]
    x, y, keys = map(backend.make, (q, k, cache))
    if chosen == "padded":  # no value of slots may be read
        library = type(find.require_backend(y, "k"))
        monkeypatch.setattr(library, "host_view", lambda *_: None)

    def apply(q: Any, k: Any, keys: Any, on_device: Any) -> Any:
        options = {"slots": slots if chosen == "host" else on_device, "cache_axes": names}
        return ROPE.apply(q, k, OLD, axes=axes, out=(None, keys), **options)

    got = backend.run(apply, x, y, keys, backend.make(slots.astype(np.int32)))
    rotated = backend.run(lambda q, k: ROPE.apply(q, k, OLD, axes=axes), *map(backend.make, (q, k)))
    same(backend.back(got[0]), backend.back(rotated[0]))
    same(backend.back(got[1]), fill_named(cache, names, backend.back(rotated[1]), slots, axes))


KINDS = ("plain", "bfloat16", "float64", "norm", "angles", "k_positions", "in place", "numpy slots")


@pytest.mark.parametrize("backend", rows(("numpy-native", "torch-native")))
@pytest.mark.parametrize("names", NAMED)
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "sbhd"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", ["apart", "padded", "shared"])
def test_the_entry_writes_to_slots_as_the_slow_path_does(
    backend, names, axes, kind, chosen, rng, monkeypatch
):
    pytest.importorskip("rope_xp_backends.cpu._native")
    dtype = kind if kind in ("bfloat16", "float64") else "float32"
    sizes = {"b": 2, "s": 3, "d": 32}
    q, k = (sample(rng, *map((sizes | {"h": n}).get, axes), dtype=dtype) for n in (4, 2))
    cache = sample(rng, *map((sizes | {"h": 2} | NAMED[names]).get, names), dtype=dtype)
    slots = np.array([[5, 2, 7], [0, 7, 5]] if "b" in names else [[5, 2, 7], [0, 13, 8]])
    if chosen == "padded":
        slots[[0, 1], [1, 0]] = -1
    if chosen == "shared" and "b" in names:
        slots = slots[0]
    x, y = backend.make(q), backend.make(k)
    given: Any = slots if kind == "numpy slots" else backend.make(slots.astype(np.int32))
    weights = [backend.make(sample(rng, 32)) for _ in "qk"]
    options: dict[str, Any] = {"axes": axes, "slots": given, "cache_axes": names}
    options |= {"norm": rope_xp.QKNorm(*weights)} if kind == "norm" else {}
    options |= {"k_positions": backend.make(np.array([NEW, OLD]))} if kind == "k_positions" else {}
    positions = backend.make(np.array([OLD, NEW]))
    angles = ROPE.at(positions, like=x)
    apply = angles.apply if kind == "angles" else partial(ROPE.apply, positions=positions)

    def call() -> tuple[np.ndarray, ...]:
        keys = backend.make(cache)
        q_out = backend.make(q * 0) if kind == "in place" else None
        got = apply(x, y, out=(q_out, keys), **options)
        assert got[1] is keys
        assert q_out is None or got[0] is q_out
        return backend.back(got[0]).copy(), backend.back(keys).copy()

    slow, at_once = run_both_ways(call, monkeypatch)
    same(at_once[0], slow[0])
    same(at_once[1], slow[1])
    rest = {name: x for name, x in options.items() if name not in ("slots", "cache_axes")}
    rotated = backend.back(apply(x, y, **rest)[1])
    same(at_once[1], fill_named(cache, names, rotated, slots, axes))


STRANGE = {
    "reversed": lambda cache: cache[::-1],
    "beside values": lambda cache: np.stack([cache, cache], 1)[:, 0],
    "every other head": lambda cache: np.repeat(cache, 2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("strides", STRANGE)
@pytest.mark.parametrize("axes", ["shd", "bshd"])
def test_a_cache_is_written_where_it_lies(strides, axes, rng, monkeypatch):
    q, k = (sample(rng, 5, n, 12)[(None,) * (len(axes) - 3)] for n in (4, 2))
    first, slots = sample(rng, 16, 2, 12), [9, 0, -1, 15, 3]

    def call() -> np.ndarray:
        cache = STRANGE[strides](first.copy())
        ROPE.apply(q, k, slots=slots, out=(None, cache))
        return cache

    slow, at_once = run_both_ways(call, monkeypatch)
    same(at_once, slow)
    changed = np.flatnonzero((at_once != STRANGE[strides](first)).any((1, 2)))
    assert changed.tolist() == [0, 3, 9, 15]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_tables_with_heads_and_keys_within_the_cache_go_to_slots(library, rng):
    q, cache = sample(rng, 1, 3, 4, 12), sample(rng, 16, 2, 12)
    tables = sample(rng, 2, 1, 3, 2, 4)
    put = np.array if library == "numpy" else pytest.importorskip("torch").tensor
    angles = ROPE.with_tables(*map(put, tables))
    keys = put(cache)
    expected = cache.copy()
    expected[[7, 0, 9]] = np.asarray(angles.rotate(put(cache[None, 2:5])))[0]
    angles.apply(put(q), keys[2:5][None], slots=[7, 0, 9], out=(None, keys))
    same(np.asarray(keys), expected)


def test_many_slots_are_not_compared_and_few_are(rng):
    q, cache = sample(rng, 65, 2, 12), np.zeros((70, 2, 12), np.float32)
    slots = np.arange(65)
    slots[-1] = 0
    with pytest.raises(RopeError, match="the same slot twice"):
        ROPE.apply(q[:64], q[:64], slots=slots[-64:] * 0, out=(None, cache))
    assert not cache.any()
    ROPE.apply(q, q, slots=slots, out=(None, cache))
    same(cache[1:64], ROPE.rotate(q)[1:64])


def test_slots_beyond_a_sequence_are_not_those_of_the_next():
    jax = pytest.importorskip("jax")
    q, cache = jax.numpy.ones((2, 1, 2, 12)), jax.numpy.zeros((2, 4, 2, 12))

    def apply(slots: Any) -> Any:
        return ROPE.apply(q, q, [[0], [0]], out=(None, cache), slots=slots, cache_axes="bshd")[1]

    written = np.asarray(jax.jit(apply)(jax.numpy.array([[4], [-1]])))
    assert (written == 0).all()
    assert np.flatnonzero(
        np.asarray(jax.jit(apply)(jax.numpy.array([[3], [0]]))).any((2, 3))
    ).tolist() == [3, 4]


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
    "must be >= 0 and below 4, the slots of": {
        "out": (Q, CACHE[None, :4]),
        "cache_axes": "bshd",
    },
    r"cache_axes='bshd' names 4 axes; out\[1\] has 3": {"cache_axes": "bshd"},
    "cache_axes='shx' has no head_dim axis": {"cache_axes": "shx"},
    "cache_axes= names the axes of a cache, and needs slots=": {"cache_axes": "shd", "slots": None},
}


@pytest.mark.parametrize("slots", [[3, 4, 5], [5, 3, 4]])
@pytest.mark.parametrize("message", ERRORS_OF_APPLY)
def test_bad_slots_of_apply_raise_and_write_nothing(message, slots):
    options: dict[str, Any] = {"slots": slots, "out": (Q, CACHE), "positions": [1, 2, 3]}
    with pytest.raises((RopeError, TypeError), match=message):
        rope_xp.apply(Q, K, **(options | ERRORS_OF_APPLY[message]))
    assert all((x == 1).all() for x in (Q, K, CACHE))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_keys_in_the_memory_of_the_cache_move_and_queries_there_are_refused(library, rng):
    before = sample(rng, *CACHE.shape)
    for slots in ([3, 4, 5], [4, 5, 6], [2, 3, 4], [5, 3, 4]):
        q, cache = Q.copy(), before.copy()
        if library == "torch":
            q, cache = map(pytest.importorskip("torch").from_numpy, (q, cache))
        rope_xp.apply(q, cache[3:6][None], [7, 8, 9], slots=slots, out=(None, cache))
        expected = before.copy()
        expected[slots] = RoPE().rotate(before[3:6], [7, 8, 9])
        same(np.asarray(cache), expected)
        held = cache.reshape(-1)[: Q.size].reshape(Q.shape)
        match = r"out\[1\] overlaps q; pass an array that shares no memory$"
        with pytest.raises(RopeError, match=match):
            rope_xp.apply(held, cache[9:12][None], slots=slots, out=(None, cache))


def test_bad_slots_of_torch_and_jax_raise_and_write_nothing():
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


def move(dtype: str, start: int, step: int, moves: int, *, slots: bool) -> float:
    """Return the error of keys that were moved, against one rotation, by the largest key."""
    rope, positions = RoPE(layout="half"), start + np.arange(32)
    raw = np.random.default_rng(0).standard_normal((32, 2, 128)).astype(numpy_dtype(dtype))
    keys = rope.rotate(raw, positions)
    options = {"slots": np.arange(32), "out": keys} if slots else {}
    for _ in range(moves):
        keys = rope.rerotate(keys, positions, positions + step, **options)
        positions = positions + step
    expected = rope.rotate(raw.astype(np.float64), positions)
    return float(np.abs(keys.astype(np.float64) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("start", "step"), [(1_000_000, -1), slow(5000, 1), slow(300_000, 64)])
def test_errors_of_a_thousand_moves_stay_small(start, step):
    """In slots float32 is turned in float64, which leaves one rounding a move."""
    assert move("float32", start, step, 1000, slots=True) <= 1e-5
    assert move("float32", start, step, 1000, slots=False) <= 1e-4


@pytest.mark.slow
def test_bfloat16_is_to_be_moved_seldom():
    """Its keys have 8 bits: a little turn is rounded away, and a thousand of them are lost."""
    assert move("bfloat16", 1_000_000, -1000, 1, slots=True) < 2.0**-8
    assert move("bfloat16", 1_000_000, -1, 1000, slots=True) > 0.1
