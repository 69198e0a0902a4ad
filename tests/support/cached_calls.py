"""Cached calls on memory that is freed, reused and guarded, against the portable path.

python cached_calls.py LIBRARY COUNT SEED
"""

import sys

import numpy as np

import rope_xp
from rope_xp import RoPE
from rope_xp._dispatch import call_cache
from support.fuzz.memory import as_torch
from support.guarded import against

ROPES = (
    RoPE(layout="half"),
    RoPE(rotary_dim=4, rotary_offset=2),
    RoPE(layout="half", scaling=rope_xp.scaling.YaRN(4.0, 64)),
    RoPE(layout="half", position_axes=(0, 1, 1, 0)),
)
SHAPES = ((1, 1, 2, 8), (1, 3, 2, 8), (2, 3, 1, 8), (3, 2, 8), (1, 2, 8))
LONE = (5, 5.5, -3.25, np.int64(7), np.float32(2.5), np.float64(1e6), np.int8(3))


def lay(random, x):
    kind = random.integers(8)
    if kind == 0:
        return against(bool(random.integers(2)), x)
    if kind == 1:
        return np.repeat(x, 2, axis=0)[::2]
    if kind == 2:
        return np.ascontiguousarray(x[::-1])[::-1]
    if kind == 3 and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    made = x.copy()
    made.setflags(write=bool(kind != 4))
    return made


def positions_of(random, rope, shape):
    tokens, batch = shape[-3], shape[:-3]
    lead = (2,) if rope.position_axes else ()
    kind = random.integers(8)
    if kind == 0 and not lead:
        return None
    if kind == 1 and tokens == 1:
        lone = LONE[random.integers(len(LONE))]
        if lead:
            return [lone, lone]
        return lone if random.integers(2) else np.asarray(lone)
    whole = random.integers(-5000, 5000, (*lead, *(batch if kind == 2 else ()), tokens))
    if kind in (3, 4):
        return whole + random.choice([0.0, 0.25, 0.5])
    if kind == 5:
        return whole.tolist()
    return whole.astype(random.choice(["int8", "int32", "int64", "float32"]))


def call(random, rope, x, positions, out):
    kind = random.integers(5)
    if kind == 0:
        return lambda: rope.unrotate(x, positions, out=out)
    if kind == 1 and positions is not None:
        return lambda: rope.at(positions, like=x).rotate(x, out=out)
    if kind == 2:
        return lambda: rope.apply(x, x, positions)[1]
    return lambda: rope.rotate(x, positions, out=out)


def make_tensor(x):
    writeable = x.flags.writeable and min(x.strides, default=0) >= 0
    return as_torch(x if writeable else x.copy())


def main(library, count, seed):
    random = np.random.default_rng(int(seed))
    make = make_tensor if library == "torch" else np.asarray
    cached = 0
    for _ in range(int(count)):
        rope, shape = ROPES[random.integers(len(ROPES))], SHAPES[random.integers(len(SHAPES))]
        plain = random.standard_normal(shape).astype(random.choice(["float32", "float64"]))
        positions = positions_of(random, rope, shape)
        x = make(lay(random, plain))
        if isinstance(positions, np.ndarray) and positions.shape:
            positions = lay(random, positions)
            positions = make(positions) if random.integers(2) else positions
        out = make(np.empty(shape, plain.dtype)) if random.integers(3) == 0 else None
        again, seed_of_call = random.integers(3), int(random.integers(1 << 30))
        for _ in range(1 + again):
            before = len(call_cache.CALLS)
            run = call(np.random.default_rng(seed_of_call), rope, x, positions, out)
            got = np.asarray(run()).copy()
            cached += len(call_cache.CALLS) == before
        if random.integers(4) == 0:
            with rope_xp.use_path("portable"):
                run = call(np.random.default_rng(seed_of_call), rope, make(plain), positions, None)
                right = np.asarray(run())
            assert (got.view(np.uint8) == right.view(np.uint8)).all(), (rope, shape, positions)
        del x, out, positions, run
    print(count, cached)


if __name__ == "__main__":
    main(*sys.argv[1:])
