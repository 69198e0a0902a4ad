"""Cached calls of ropes that come and go, in threads, on memory that is reused, freed and guarded.

Each has the bits of the portable path, which is not cached and reads plain copies.

python tests/support/cached_calls.py numpy|torch CALLS SEED
"""

import importlib
import itertools
import sys
import threading
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import numpy as np
from rope_xp_backends.cpu import _native

import rope_xp
from rope_xp import RoPE, scaling
from rope_xp._core import caches
from rope_xp._core.tables import DigitTables
from rope_xp._dispatch import choose
from rope_xp._rotation.tables import host_tables
from support.bits import same
from support.equality import LAYOUTS
from support.fuzz.libraries import LIBRARIES
from support.fuzz.memory import View, measure
from support.guarded import against
from support.targets import numpy_dtype, truth

THREADS = 2
CALLERS = 8
"""How many signatures a thread calls in turn. At last a new one takes the place of another."""
MOST_BYTES = 1 << 20  # of tables, so that some are evicted all the time
ELEMENTS_A_THREAD = 1 << 10
PAUSE = 0.1  # seconds between two calls of clear_caches in a thread of its own
BLOCK = 1 << 15  # bytes; no array of a call needs more
TABLE_BYTES = 2048 * 16 * 8  # of the largest table: float64, of head_dim 16
NAN = 255  # in every byte of a NaN
NUMBERS = np.random.default_rng(0).standard_normal(1 << 14)
POSITIONS = {
    "near": np.random.default_rng(1).integers(0, 120, 1 << 10),
    "signed": np.random.default_rng(2).integers(-(1 << 15), 1 << 15, 1 << 10),
    "middle": np.random.default_rng(3).integers(0, 1 << 22, 1 << 10),
    "far": np.random.default_rng(4).integers(1 - (1 << 31), 1 << 31, 1 << 10),
    "fractions": np.random.default_rng(5).uniform(-2000, 2000, 1 << 10),
}
POSITION_DTYPES = {
    "near": ("int8", "uint8", "int16", "int32", "int64", "float16", "float32"),
    "signed": ("int16", "int32", "int64", "float32", "float64"),
    "middle": ("int32", "int64", "int64", "float32"),
    "far": ("int32", "int64", "float64"),
    "fractions": ("float16", "float32", "float64"),
}
DTYPES = (*["float32"] * 4, *["bfloat16"] * 2, "float16", "float64")
AXES = ("bshd", "bshd", "bhsd", "sbhd", "shd", "hsd", "bsd", "sd")
SCALINGS = (None, None, None, scaling.Linear(8.0), scaling.YaRN(4.0, 64))


class Layout(NamedTuple):
    """How arrays of one shape lie in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    bytes: int
    first: int

    def put(self, memory, numbers):
        """Return a new array of numbers, which start anywhere among many."""
        x = np.ndarray(self.shape, self.dtype, memory.take(self.bytes), self.first, self.strides)
        start = memory.random.randrange(len(numbers) - x.size)
        x[...] = numbers[start : start + x.size].reshape(self.shape)
        return x


class Memory:
    """Blocks of bytes in which the arrays of each call lie, where those of other calls lay."""

    def __init__(self, random):
        self.random = random
        self.arena = np.zeros(16 * BLOCK, np.uint8)
        self.guarded = [against(False, np.zeros(BLOCK, np.uint8)) for _ in range(12)]
        self.reuse()

    def reuse(self):
        """Give the memory of all arrays so far to others."""
        self.used, self.free = 0, self.guarded.copy()

    def take(self, size):
        kind = self.random.randrange(5)
        if kind < 2:  # behind a page that nobody may touch, or before one
            block = self.free.pop(self.random.randrange(len(self.free)))
            return block[:size] if kind else block[BLOCK - size :]
        if kind < 4:  # side by side
            start = self.used
            self.used += size + -size % 8
            return self.arena[start : start + size]
        return np.empty(size, np.uint8)


class TableMemory:
    """A table in a block that is filled with NaN, and given to other tables, when it is evicted."""

    def __init__(self, table, pool):
        self.block = pool.pop() if pool else against(False, np.full(TABLE_BYTES, NAN, np.uint8))
        self.pool = pool
        x = np.ndarray(table.shape, table.dtype, self.block)
        x[...] = table
        self.__array_interface__ = x.__array_interface__

    def __del__(self):
        self.block.fill(NAN)
        self.pool.append(self.block)


def reuse_memory_of_tables():
    """Have new tables lie where evicted tables of other ropes lay."""
    cache, pools = host_tables.__self__, defaultdict(list)
    build = cache.function

    def move(i, table):
        view = np.asarray(TableMemory(table, pools[i])).view()
        view.setflags(write=False)
        return view

    def build_there(key):
        tables = enumerate(build(key))
        return DigitTables(*(table if table is None else move(i, table) for i, table in tables))

    cache.function = build_there


@dataclass(frozen=True)
class Caller:
    """All of a call but numbers and memory."""

    rope: RoPE
    method: str  # apply, rotate or unrotate
    angles: str  # from positions or "at"
    axes: str
    sizes: dict[str, int]
    arrays: tuple[Layout, ...]
    out: tuple[Layout, ...] | str  # "new", "in place", or where results lie
    kind: str  # of positions: none, list, numpy or library
    range: str
    positions: Layout


def draw_view(random, shape, dtype, backwards):
    order, steps = [*range(len(shape) - 1)], [1] * len(shape)
    if random.randrange(3) == 0:
        random.shuffle(order)
    if order and random.randrange(4) == 0:
        steps[random.choice(order)] = -1 if backwards and random.randrange(2) else 2
    if shape and random.randrange(24) == 0:
        steps[-1] = 2
    order = (*order, len(shape) - 1) if shape else ()
    return lay_out(shape, View(dtype, order, tuple(steps)))


def lay_out(shape, view):
    return Layout(shape, numpy_dtype(view.dtype), *measure(shape, view))


def draw_rope(random, head_dim):
    r = 2 * random.randint(1, head_dim // 2)
    offset = random.randint(0, head_dim - r)
    components = random.randint(1, 3)
    axes = tuple(random.randrange(components) for _ in range(r // 2))
    return RoPE(
        base=random.choice((1e4, 5e5, 1e4 + random.randrange(1000))),
        layout=random.choice(LAYOUTS),
        rotary_dim=None if r == head_dim and random.randrange(2) else r,
        rotary_offset=offset - head_dim if offset and random.randrange(2) else offset,
        scaling=random.choice(SCALINGS),
        position_axes=None if random.randrange(3) else axes,
    )


def draw_other(random, caller):
    """Return a caller with another rope, for arrays and positions that lie as these do."""
    rope, head_dim = caller.rope, caller.sizes["d"]
    most = (head_dim - rope.rotary_offset % head_dim) // 2
    r = 2 * random.randint(1, most)
    axes = rope.position_axes
    if axes is not None:  # as many components
        axes = [max(axes), *(random.randint(0, max(axes)) for _ in range(r // 2 - 1))]
        random.shuffle(axes)
        axes = tuple(axes)
    fields = {"rotary_dim": r, "scaling": random.choice(SCALINGS), "position_axes": axes}
    return replace(caller, rope=replace(rope, base=1e4 + random.randrange(1000), **fields))


def draw_caller(random, library):
    method = random.choice(("apply", "apply", "rotate", "unrotate"))
    angles = random.choice(("positions", "positions", "at"))
    axes = random.choice(AXES)
    sizes = {"b": random.choice((1, 1, 2)), "s": random.choice((1, 1, 1, 2, 3, 5))}
    sizes |= {"h": random.choice((1, 2, 4)), "d": random.choice((4, 6, 8, 8, 16, 16))}
    dtype = k_dtype = random.choice(DTYPES)
    if angles == "positions" and random.randrange(8) == 0:
        k_dtype = random.choice(DTYPES)
    rope = draw_rope(random, sizes["d"])
    shapes = [tuple(sizes[a] for a in axes)]
    if method == "apply":
        k_sizes = sizes | {"h": random.choice((1, 2, 3))}
        shapes.append(tuple(k_sizes[a] for a in axes))
    backwards, dtypes = library.any_memory, (dtype, k_dtype)

    def draw_layouts():
        pairs = zip(shapes, dtypes, strict=False)
        return tuple(draw_view(random, shape, dtype, backwards) for shape, dtype in pairs)

    layouts = draw_layouts()
    out = random.choice(("new", "in place", draw_layouts()))
    batch = tuple(sizes[a] for a in axes if a == "b")
    shape = random.choice(((sizes["s"],), (sizes["s"],), (*batch, sizes["s"]), (*batch, 1)))
    if shape == (1,) and (sizes["s"] > 1 or random.randrange(3) == 0):
        shape = () if sizes["s"] == 1 else (sizes["s"],)
    if rope.position_axes is not None:
        shape = (max(rope.position_axes) + 1, *shape)
    kind = random.choice(("none", "list", "numpy", "library", "library"))
    if kind == "none" and angles != "positions":
        kind = "numpy"
    spread = random.choice(list(POSITIONS))
    layout = draw_view(random, shape, random.choice(POSITION_DTYPES[spread]), backwards)
    return Caller(rope, method, angles, axes, sizes, layouts, out, kind, spread, layout)


class Thread(threading.Thread):
    """Draws callers and calls them, by random numbers of its own."""

    failed = threading.Event()

    def __init__(self, library, calls, seed):
        super().__init__(name=f"seed {seed!r}", daemon=True)
        self.library, self.calls, self.random = library, calls, Random(seed)
        self.memory, self.error = Memory(self.random), None

    def run(self):
        try:
            self.call_all()
        except BaseException:  # noqa: BLE001  # whatever it is, main prints it
            self.error = f"{self.name}, call {self.count}\n{traceback.format_exc()}"
            self.failed.set()

    def call_all(self):
        random, self.count = self.random, 0
        callers = [self.draw() for _ in range(CALLERS)]
        while self.count < self.calls and not self.failed.is_set():
            i = random.randrange(CALLERS)
            if random.randrange(4) == 0:
                callers[i] = self.draw(callers[i])
            for _ in range(random.choice((2, 5, 10, 25))):
                self.call(callers[i])
                self.count += 1
            if random.randrange(400) == 0:
                rope_xp.clear_caches()

    def draw(self, old=None):
        new = old and self.random.randrange(4) and draw_other(self.random, old)
        return new or draw_caller(self.random, self.library)

    def put(self, layout):
        return layout.put(self.memory, NUMBERS)

    def call(self, caller):
        self.memory.reuse()
        rope, make = caller.rope, self.library.make
        arrays, options = [self.put(layout) for layout in caller.arrays], {"axes": caller.axes}
        positions = given_at = self.draw_positions(caller)
        if caller.kind == "list":
            given_at = positions.tolist()
        elif caller.kind == "library":
            given_at = make(positions)
        if caller.angles == "positions":
            options["positions"] = given_at

        def rotate(given, **out):
            angles = rope if caller.angles == "positions" else rope.at(given_at, like=given[0])
            results = getattr(angles, caller.method)(*given, **options, **out)
            return results if caller.method == "apply" else (results,)

        given, outs, more = list(map(make, arrays)), None, {}
        copies = [make(x.copy()) for x in arrays]
        if caller.out == "in place":
            outs = given
        elif caller.out != "new":
            outs = [make(self.put(layout)) for layout in caller.out]
        if outs is not None:
            more["out"] = tuple(outs) if caller.method == "apply" else outs[0]
        read = [positions, *([] if outs is given else arrays)]
        before = [(x, x.tobytes()) for x in read if x is not None]
        results = rotate(given, **more)
        assert outs is None or all(y is out for y, out in zip(results, outs, strict=True))
        assert all(x.tobytes() == old for x, old in before), f"{caller} wrote to what it reads"
        # Not before, as it would bring tables back that were evicted.
        for y, right in zip(results, truth(rotate, copies), strict=True):
            try:
                same(self.library.back(y), self.library.back(right))
            except AssertionError as error:
                error.add_note(str(caller))
                raise

    def draw_positions(self, caller):
        if caller.kind == "none":
            return None
        return caller.positions.put(self.memory, POSITIONS[caller.range])


def main(library, calls, seed):
    caches.MAX_BYTES = MOST_BYTES
    _native.tune("thread_elements", ELEMENTS_A_THREAD)
    reuse_memory_of_tables()
    if library == "torch":
        importlib.import_module("torch").set_num_threads(3)
    slow, run_on_path = itertools.count(), choose.run_on_path
    choose.run_on_path = lambda call: (choose.choice.name or next(slow), run_on_path(call))[1]
    (found,) = (each for each in LIBRARIES if each.name == library)
    start, count = time.perf_counter(), int(calls) // THREADS
    threads = [Thread(found, count, f"{seed} {i}") for i in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rope_xp.clear_caches()
        time.sleep(PAUSE)
    if Thread.failed.is_set():
        sys.exit("\n".join(thread.error for thread in threads if thread.error))
    seconds = time.perf_counter() - start
    built = host_tables.__self__.built
    print(sum(thread.count for thread in threads), next(slow), built, round(seconds, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
