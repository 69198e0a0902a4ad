"""Every public way to call, compared with the formula that a user would write for the same job.

q has 32 heads and k 8, of 128 components, half layout; there is one token in each sequence. The
formula is that of Hugging Face's modules: cos and sin in the dtype of q, heads repeated for groups.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rope_xp
from rope_xp import Choice, QKNorm, RoPE
from rope_xp.scaling import LongRoPE

BASE, HEADS, KV_HEADS, HEAD_DIM, SLOTS, PAGE = 10000.0, 32, 8, 128, 1024, 16
PAIRS = HEAD_DIM // 2


class Way(NamedTuple):
    covers: tuple[str, ...]
    """Public functions, and their parameters after a colon."""
    call: Callable[[], Any]
    formula: Callable[[], Any]


class Library:
    """Arrays of numpy or torch, and the formula in their operations."""

    def __init__(self, name: str, dtype: str, grad: bool = False) -> None:
        self.is_torch, self.grad = name == "torch", grad
        self.rng = np.random.default_rng(0)
        if self.is_torch:
            import torch

            self.xp: Any = torch
            self.dtype, self.cat = getattr(torch, dtype), torch.cat
        else:
            import ml_dtypes

            self.xp, self.cat = np, np.concatenate
            self.dtype = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)

    def put(self, host: Any) -> Any:
        return self.xp.asarray(host) if not self.is_torch else self.xp.tensor(np.asarray(host))

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype) if self.is_torch else x.astype(dtype)

    def random(self, *shape: int, learns: bool = True) -> Any:
        x = self.cast(self.put(self.rng.standard_normal(shape, np.float32)), self.dtype)
        return x.requires_grad_() if self.grad and learns else x

    def copy(self, x: Any) -> Any:
        return x.detach().clone() if self.is_torch else x.copy()

    def double(self, x: Any) -> Any:
        return self.cat([x, x], -1)

    def cos_sin(self, angles: Any) -> tuple[Any, Any]:
        angles = self.double(angles)
        return self.cast(self.xp.cos(angles), self.dtype), self.cast(
            self.xp.sin(angles), self.dtype
        )

    def at(self, positions: Any, frequencies: Any) -> tuple[Any, Any]:
        return self.cos_sin(self.cast(positions, self.xp.float32)[..., None] * frequencies)

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + self.cat([-x[..., half:], x[..., :half]], -1) * sin

    def rotate_both(self, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        tables = cos[..., None, :], sin[..., None, :]
        return self.rotate(q, *tables), self.rotate(k, *tables)

    def rotate_heads(self, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        group = HEADS // KV_HEADS
        repeat = self.xp.repeat_interleave if self.is_torch else np.repeat
        wide = repeat(cos, group, -2), repeat(sin, group, -2)
        return self.rotate(q, *wide), self.rotate(k, cos, sin)

    def normalize(self, x: Any, weight: Any) -> Any:
        y = self.cast(x, self.xp.float32)
        if self.is_torch:
            y = y * self.xp.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)
        else:
            y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6)
        return weight * self.cast(y, self.dtype)


Add = Callable[[str, str, Callable[[], Any], Callable[[], Any]], None]


class Case:
    """The arrays of a call, and the formulas of its parts."""

    def __init__(self, name: str, dtype: str, batch: int, grad: bool) -> None:
        lib = self.lib = Library(name, dtype, grad)
        self.rope, self.host = RoPE(base=BASE, layout="half"), 5000 + 7 * np.arange(batch)[:, None]
        self.frequencies = lib.put(BASE ** (-np.arange(0, HEAD_DIM, 2, np.float32) / HEAD_DIM))
        self.p, self.kp = lib.put(self.host), lib.put(self.host + 3)
        self.q, self.k = (lib.random(batch, 1, n, HEAD_DIM) for n in (HEADS, KV_HEADS))
        self.weights = lib.random(HEAD_DIM), lib.random(HEAD_DIM)
        self.norm = QKNorm(*self.weights)
        self.angles = self.rope.at(self.p, like=lib.copy(self.q))
        self.cos, self.sin = (t[..., None, :] for t in lib.at(self.p, self.frequencies))

    def both(self, q: Any = None, k: Any = None, p: Any = None, f: Any = None) -> tuple[Any, Any]:
        given, own = (q, k, p, f), (self.q, self.k, self.p, self.frequencies)
        q, k, p, f = (b if a is None else a for a, b in zip(given, own, strict=True))
        return self.lib.rotate_both(q, k, *self.lib.at(p, f))

    def one(self, x: Any = None, p: Any = None) -> Any:
        tables = self.lib.at(self.p if p is None else p, self.frequencies)
        return self.lib.rotate(self.q if x is None else x, *(t[..., None, :] for t in tables))

    def given(self, x: Any = None, sign: float = 1.0) -> Any:
        return self.lib.rotate(self.q if x is None else x, self.cos, sign * self.sin)

    def normalized(self) -> tuple[Any, Any]:
        pairs = zip((self.q, self.k), self.weights, strict=True)
        q, k = (self.lib.normalize(x, w) for x, w in pairs)
        return q, k


def build(name: str, dtype: str, batch: int = 1, *, grad: bool = False) -> dict[str, Way]:
    """Return the ways to call in a library, on arrays of a dtype and so many sequences."""
    case, ways = Case(name, dtype, batch, grad), dict[str, Way]()

    def add(title: str, covers: str, call: Callable[[], Any], formula: Callable[[], Any]) -> None:
        ways[title] = Way(tuple(covers.split()), call, formula)

    for add_some in (_add_rotations, _add_angles, _add_tables, _add_learned):
        add_some(case, add)
    if not grad:  # autograd records no writes to memory of the caller
        _add_results(case, add)
        _add_caches(case, add)
    return ways


def _add_rotations(case: Case, add: Add) -> None:
    lib, rope, q, k, p = case.lib, case.rope, case.q, case.k, case.p
    options, plain = {"base": BASE, "layout": "half"}, "RoPE.apply RoPE.apply:positions"
    add("apply", plain, lambda: rope.apply(q, k, p), case.both)
    covers = "apply apply:positions apply:rope"
    add("function, rope", covers, lambda: rope_xp.apply(q, k, p, rope), case.both)
    add("function, options", "apply:options", lambda: rope_xp.apply(q, k, p, **options), case.both)
    covers = "RoPE.apply:axes apply:axes"
    add("axes", covers, lambda: rope.apply(q, k, p, axes="bshd"), case.both)
    covers = "RoPE.rotate RoPE.rotate:positions RoPE.rotate:axes"
    add("rotate", covers, lambda: rope.rotate(q, p, axes="bshd"), case.one)
    covers = "RoPE.unrotate RoPE.unrotate:positions RoPE.unrotate:axes"
    add("unrotate", covers, lambda: rope.unrotate(q, p, axes="bshd"), lambda: case.one(p=-p))
    add("positions, a list", "", lambda: rope.apply(q, k, case.host.tolist()), case.both)
    halves = lib.cast(p, lib.xp.float32) + 0.5
    add("positions, floats", "", lambda: rope.apply(q, k, halves), lambda: case.both(p=halves))
    covers, kp = "RoPE.apply:k_positions apply:k_positions", case.kp
    call = lambda: rope.apply(q, k, p, k_positions=kp)
    add("k_positions", covers, call, lambda: (case.one(), case.one(k, kp)))
    covers, norm = "RoPE.apply:norm apply:norm QKNorm", case.norm

    def normed() -> tuple[Any, Any]:
        return case.both(*case.normalized())

    between = QKNorm(*case.weights, round_between=True)
    add("norm", covers, lambda: rope.apply(q, k, p, norm=norm), normed)
    covers = "QKNorm:round_between"
    add("norm, round_between", covers, lambda: rope.apply(q, k, p, norm=between), normed)
    weight = case.weights[0]
    call = lambda: rope.rotate(q, p, norm=(weight, 1e-6))
    add("rotate, norm", "RoPE.rotate:norm", call, lambda: case.one(lib.normalize(q, weight)))
    ones, twos = (1.0,) * PAIRS, (2.0,) * PAIRS
    rule = LongRoPE(ones, twos, 4096, attention_factor=1.0, max_position_embeddings=8192)
    long = RoPE(**options, scaling=rule)
    call = lambda: long.for_length(4000).apply(q, k, p)
    add("for_length", "RoPE.for_length", call, case.both)


def _add_angles(case: Case, add: Add) -> None:
    lib, rope, q, k, p, angles = case.lib, case.rope, case.q, case.k, case.p, case.angles

    def at() -> Any:
        return lib.at(p, case.frequencies)

    def given() -> Any:
        return case.given(), case.given(k)

    def back() -> Any:
        return case.given(sign=-1.0)

    covers = "RoPE.at RoPE.at:positions RoPE.at:like RoPE.at:head_dim"
    add("at", covers, lambda: rope.at(p, like=q, head_dim=HEAD_DIM), at)
    covers = "Angles.apply Angles.apply:axes"
    add("Angles.apply", covers, lambda: angles.apply(q, k, axes="bshd"), given)
    covers = "Angles.rotate Angles.rotate:axes"
    add("Angles.rotate", covers, lambda: angles.rotate(q, axes="bshd"), case.given)
    covers = "Angles.unrotate Angles.unrotate:axes"
    add("Angles.unrotate", covers, lambda: angles.unrotate(q, axes="bshd"), back)

    def normed() -> Any:
        q, k = case.normalized()
        return case.given(q), case.given(k)

    covers = "Angles.apply:norm Angles.rotate:norm"
    add("Angles.apply, norm", covers, lambda: angles.apply(q, k, norm=case.norm), normed)
    narrow = [lib.cast(t, lib.dtype) for t in (angles.cos, angles.sin)]
    call = lambda: rope.with_tables(*narrow).apply(q, k)
    add("with_tables", "RoPE.with_tables", call, given)
    which = np.arange(len(p)) % 2
    choice = Choice((rope, RoPE(base=5e5, layout="half")), which.tolist())
    other = lib.put(5e5 ** (-np.arange(0, HEAD_DIM, 2, np.float32) / HEAD_DIM))
    stacked, rows = lib.xp.stack([case.frequencies, other]), lib.put(which)
    call, covers = lambda: choice.apply(q, k, p, axes="bshd"), "Choice.apply Choice.apply:axes"
    add("Choice.apply", covers, call, lambda: case.both(f=stacked[rows][:, None]))
    call, covers = lambda: choice.at(p, like=q), "Choice.at Choice.at:head_dim"
    add("Choice.at", covers, call, lambda: lib.at(p, stacked[rows][:, None]))
    add("cos_sin", "RoPE.cos_sin", lambda: rope.cos_sin(p, HEAD_DIM), at)
    rows_of_python, xp = case.host.tolist(), lib.xp
    call = lambda: rope.cos_sin(rows_of_python, HEAD_DIM, xp=xp)
    add("cos_sin, a list", "RoPE.cos_sin:xp", call, at)
    call = lambda: rope.table(SLOTS, HEAD_DIM, form="onnx", xp=xp)
    add("table", "RoPE.table", call, lambda: lib.at(xp.arange(SLOTS), case.frequencies))


def _add_tables(case: Case, add: Add) -> None:
    lib, q, k = case.lib, case.q, case.k
    tables = case.angles.cos, case.angles.sin
    covers = " ".join(["apply_tables", *(f"apply_tables:{n}" for n in _TABLE_OPTIONS)])
    call = lambda: rope_xp.apply_tables(q, *tables, layout="half", axes="bshd")
    add("apply_tables", covers, call, case.given)
    call = lambda: rope_xp.apply_tables(q, *tables, layout="half", inverse=True)
    add("apply_tables, inverse", "apply_tables:inverse", call, lambda: case.given(sign=-1.0))
    theta = lib.cast(case.p, lib.xp.float32)[..., None] * case.frequencies
    heads = theta[..., None, :] * lib.put(_SHARES)
    apply_angles = functools.partial(rope_xp.apply_angles, q, k, layout="half")

    def shared(q: Any = q, k: Any = k) -> Any:
        return lib.rotate_both(q, k, *lib.cos_sin(theta))

    covers = " ".join(["apply_angles", *(f"apply_angles:{n}" for n in _TABLE_OPTIONS)])
    add("apply_angles", covers, lambda: apply_angles(theta, axes="bshd"), shared)
    by_heads = lambda: lib.rotate_heads(q, k, *lib.cos_sin(heads))
    add("apply_angles, by head", "", lambda: apply_angles(heads), by_heads)
    normed = lambda: shared(*case.normalized())
    add(
        "apply_angles, norm",
        "apply_angles:norm",
        lambda: apply_angles(theta, norm=case.norm),
        normed,
    )
    two = lambda: (shared()[0], shared()[1])
    add(
        "apply_angles, k_angles",
        "apply_angles:k_angles",
        lambda: apply_angles(theta, k_angles=theta),
        two,
    )


_TABLE_OPTIONS = "layout", "axes", "rotary_offset"
_SHARES = np.linspace(0.5, 1, KV_HEADS, dtype=np.float32)[:, None]
"""Of frequencies, by head of k."""


def _add_learned(case: Case, add: Add) -> None:
    lib, q, k, p = case.lib, case.q, case.k, case.p
    learned = lib.copy(case.frequencies)
    learned = learned.requires_grad_() if lib.grad else learned
    own = learned * lib.put(_SHARES)
    apply_frequencies = functools.partial(rope_xp.apply_frequencies, q, k, p, layout="half")
    covers = "apply_frequencies apply_frequencies:layout apply_frequencies:axes"
    call = lambda: apply_frequencies(learned, axes="bshd")
    add("apply_frequencies", covers, call, lambda: case.both(f=learned))
    by_heads = lambda: lib.rotate_heads(q, k, *lib.at(p[..., None], own))
    add("apply_frequencies, by head", "", lambda: apply_frequencies(own), by_heads)
    steps = lib.put(lib.rng.standard_normal((len(p), 1, KV_HEADS, PAIRS), np.float32))
    sum_angles = functools.partial(rope_xp.cumulative_angles, steps, 1, return_state=True)
    state = sum_angles()[1]
    covers = "cumulative_angles cumulative_angles:start cumulative_angles:return_state"
    add("cumulative_angles", covers, lambda: sum_angles(start=state)[0], lambda: steps + steps)


def _add_results(case: Case, add: Add) -> None:
    lib, rope, q, k, p, kp = case.lib, case.rope, case.q, case.k, case.p, case.kp
    out, angles = (lib.copy(q), lib.copy(k)), case.angles
    add("out", "RoPE.apply:out apply:out", lambda: rope.apply(q, k, p, out=out), case.both)
    add("out, a list", "", lambda: rope.apply(q, k, p, out=[*out]), case.both)
    covers = "RoPE.rotate:out RoPE.unrotate:out"
    add("out, rotate", covers, lambda: rope.rotate(q, p, out=out[0]), case.one)
    two = lambda: (case.one(), case.one(k, kp))
    add("out, k_positions", "", lambda: rope.apply(q, k, p, k_positions=kp, out=out), two)
    covers = "Angles.apply:out Angles.rotate:out Angles.unrotate:out Choice.apply:out"
    add("out, Angles", covers, lambda: angles.apply(q, k, out=out), case.both)
    rotate = functools.partial(rope_xp.apply_tables, q, angles.cos, angles.sin, layout="half")
    add("out, apply_tables", "apply_tables:out", lambda: rotate(out=out[0]), case.given)
    covers = "apply_angles:out apply_frequencies:out"
    given = functools.partial(rope_xp.apply_frequencies, q, k, p, case.frequencies, layout="half")
    add("out, apply_frequencies", covers, lambda: given(out=out), case.both)
    moved, back = lib.copy(k), lib.put(np.full(p.shape, -4000))
    covers = "RoPE.rerotate RoPE.rerotate:to RoPE.rerotate:axes"
    call = lambda: rope.rerotate(k, p, p - 4000, to=rope, axes="bshd")
    add("rerotate", covers, call, lambda: case.one(k, back))
    call = lambda: rope.rerotate(k, p, p - 4000, out=moved)
    add("rerotate, out", "RoPE.rerotate:out", call, lambda: case.one(k, back))


def _add_caches(case: Case, add: Add) -> None:
    lib, rope, q, k, p = case.lib, case.rope, case.q, case.k, case.p
    shape, batch = (SLOTS, KV_HEADS, HEAD_DIM), len(p)
    flat, paged = lib.random(*shape), lib.random(SLOTS // PAGE, PAGE, *shape[1:])
    static = lib.random(batch, KV_HEADS, 64, HEAD_DIM)
    numbers = np.random.default_rng(1).permutation(SLOTS)[:batch][:, None]
    slots, row = lib.put(numbers), lib.put(numbers).reshape(-1)
    apply = functools.partial(rope.apply, q, k, p)

    def assign(cache: Any, index: Any, *normalized: Any) -> tuple[Any, Any]:
        q_rotated, keys = case.both(*normalized)
        cache[index] = keys.reshape(-1, KV_HEADS, HEAD_DIM)
        return q_rotated, cache

    covers, to_flat = "RoPE.apply:slots apply:slots", lambda: assign(flat, row)
    add("slots", covers, lambda: apply(slots=slots, out=(None, flat)), to_flat)
    add("slots, a list", "", lambda: apply(slots=numbers.tolist(), out=(None, flat)), to_flat)
    to_pages = lambda: assign(paged, (row // PAGE, row % PAGE))
    add("slots, pages", "", lambda: apply(slots=slots, out=(None, paged)), to_pages)
    covers = "RoPE.apply:cache_axes apply:cache_axes"
    call = lambda: apply(slots=[7], out=(None, static), cache_axes="bhsd")
    add("slots, cache_axes", covers, call, lambda: assign(static, (slice(None), slice(None), 7)))
    call = lambda: apply(slots=slots, out=(None, flat), norm=case.norm)
    add("slots, norm", "", call, lambda: assign(flat, row, *case.normalized()))
    covers = "Angles.apply:slots Angles.apply:cache_axes Choice.apply:slots Choice.apply:cache_axes"
    call = lambda: case.angles.apply(q, k, slots=slots, out=(None, flat))
    add("slots, Angles", covers, call, to_flat)
    old = p.reshape(-1)

    def move() -> Any:
        cos, sin = lib.at(old * 0 + 1, case.frequencies)
        flat[row] = lib.rotate(flat[row], cos[:, None], sin[:, None])
        return flat

    call = lambda: rope.rerotate(flat, old, old + 1, slots=row, out=flat)
    add("rerotate, slots", "RoPE.rerotate:slots", call, move)
