"""Few keys in slots of a cache like one that was written to before: checked faster, never less."""

import numpy as np
import pytest
from support.bits import same, sample
from support.targets import rows

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._arguments import slots as slots_module

ROPE = RoPE(layout="half", rotary_dim=8)
CACHES = {  # axes of k, shape and axes of the cache, slots of two calls
    "static": ("bshd", (16, 2, 12), None, [[4]], [[11]]),
    "pages": ("bhsd", (4, 4, 2, 12), None, [[9], [2], [14]], [[3], [7], [8]]),
    "strided": ("bshd", (4, 4, 2, 12), "psd", [[9], [2], [14]], [[3], [7], [8]]),
    "heads first": ("bhsd", (3, 2, 8, 12), "bhsd", [[5], [5], [0]], [[1], [7], [0]]),
    "shared": ("sbhd", (3, 8, 2, 12), "bshd", [5, 6], [0, 3]),
}


@pytest.mark.parametrize("backend", rows(("numpy-native", "array-api-strict", "torch", "cupy")))
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("result", ["new", "in place"])
def test_later_calls_write_as_the_first_did(backend, kind, result, rng, monkeypatch):
    axes, shape, names, *chosen = CACHES[kind]
    sizes = {"b": 1 if kind == "static" else 3, "s": 2 if kind == "shared" else 1, "d": 12}
    heads, positions = (4, 2), [70_000 + i for i in range(sizes["s"])]
    if kind == "strided":
        heads, shape = (1, 1), (4, 4, 12)
    hosts = [sample(rng, *map((sizes | {"h": n}).get, axes)) for n in heads] + [sample(rng, *shape)]
    checked = []
    check_slots = slots_module._check_slots

    def record(*args, **options):
        checked.append(1)
        return check_slots(*args, **options)

    monkeypatch.setattr(slots_module, "_check_slots", record)

    def write(slots):
        q, k, cache = (backend.make(host.copy()) for host in hosts)
        options = {"axes": axes, "cache_axes": names, "slots": slots}
        got = ROPE.apply(
            q, k, positions, out=(q if result == "in place" else None, cache), **options
        )
        assert got[1] is cache
        same(backend.back(k), hosts[1])
        return [backend.back(x) for x in got]

    for slots in chosen:
        for given in (slots, *(backend.make(np.array(slots, dtype)) for dtype in ("u1", "i8"))):
            rope_xp.clear_caches()
            first, count = write(given), len(checked)
            for later, expected in zip(write(given), first, strict=True):
                same(later, expected)
            assert len(checked) == count + (backend.name == "array-api-strict")


Q, K, CACHE = (np.ones((*shape, 12), np.float32) for shape in ((1, 1, 4), (1, 1, 2), (16, 2)))
READ_ONLY = CACHE.copy()
READ_ONLY.flags.writeable = False
ERRORS = {
    "must be >= 0 and below 16": {"slots": [16]},
    "got -1 to -1": {"slots": [-1]},
    "slots must be integers": {"slots": [1.0]},
    "positions has shape": {"positions": [1, 2]},
    r"out\[0\] is .* the result for q": {"out": (K.copy(), CACHE)},
    "out\\[0\\] and out\\[1\\] overlap": {"out": (CACHE.reshape(-1)[:48].reshape(Q.shape), CACHE)},
    "float64; slots= needs a key cache": {"out": (Q, CACHE.astype("f8"))},
    r"out\[1\] is read-only": {"out": (Q, READ_ONLY)},
}


@pytest.mark.parametrize("message", ERRORS)
def test_an_error_after_a_right_call_raises_and_writes_nothing(message):
    options = {"slots": [3], "out": (Q, CACHE), "positions": [5]}
    for _ in "ab":
        rope_xp.apply(Q, K, **(options | {"out": (Q.copy(), CACHE.copy())}))
    with pytest.raises(RopeError, match=message):
        rope_xp.apply(Q, K, **(options | ERRORS[message]))
    assert all((x == 1).all() for x in (Q, K, CACHE))


def test_a_slot_given_twice_and_what_learns_are_refused_after_a_right_call():
    torch = pytest.importorskip("torch")
    q, k, cache = torch.ones(2, 1, 4, 12), torch.ones(2, 1, 2, 12), torch.zeros(16, 2, 12)
    weight = torch.ones(12, requires_grad=True)
    options = {"slots": [[3], [4]], "out": (None, cache)}
    for _ in "ab":
        ROPE.apply(q, k, [0], **options)
    with pytest.raises(RopeError, match="the same slot twice"):
        ROPE.apply(q, k, [0], **(options | {"slots": [[3], [3]]}))
    for learns in (
        lambda: ROPE.apply(q, k, [0], norm=rope_xp.QKNorm(weight, weight), **options),
        lambda: ROPE.apply(q.clone().requires_grad_(), k, [0], **options),
    ):
        with pytest.raises(RopeError, match="autograd cannot follow"):
            learns()
    assert (cache[5:] == 0).all()
    assert not cache.requires_grad


def test_a_plan_holds_no_array_and_keys_within_the_cache_move(rng):
    cache = sample(rng, 16, 2, 12)
    before = cache.copy()
    for slot in (7, 8):  # k is a view of the cache itself
        ROPE.apply(Q.copy(), cache[3][None, None], [5], slots=[slot], out=(None, cache))
    before[[7, 8]] = ROPE.rotate(before[3][None], [5])
    same(cache, before)
