"""Print by how many MiB the process grows over calls of a kind, and what is left after clearing."""

import gc
import importlib
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

import rope_xp
from rope_xp import RoPE, scaling

X = np.ones((1, 4, 2, 128), np.float32)


def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * 4096 / 2**20


def ropes(make):
    for i in range(70):
        for _ in range(3):
            yield RoPE(base=1e4 + i, layout="half").rotate(make(X))


def angles(make, *, trains=False):
    """Prompts of many lengths, each with angles of its own."""
    rope = RoPE(layout="half")
    for n in range(1500, 2200, 16):
        x = make(np.ones((1, n, 1, 128), np.float32))
        x = x.requires_grad_() if trains else x
        for _ in range(3):
            y = rope.at(np.arange(n), like=x).rotate(x)
            if trains:
                y.sum().backward()
                y = y.detach()
            yield y


def mixed(make):
    random = np.random.default_rng(0)
    many = [RoPE(base=5e3 + i, layout="half") for i in range(30)]
    many += [RoPE(scaling=scaling.DynamicNTK(2.0, 16)).for_length(n) for n in range(17, 47)]
    for _ in range(150):
        rope = many[random.integers(len(many))]
        n = int(random.integers(1, 400))
        x = make(np.ones((1, n, 2, 128), np.float32))
        start = int(random.integers(1 << 20))
        kind = random.integers(6)
        if kind == 0:
            yield rope.apply(x, x, np.arange(start, start + n))
        elif kind == 1:
            yield rope.rotate(x, np.arange(n) + 0.5)
        elif kind == 2:
            yield rope.rotate(x, out=x)
        elif kind == 3:
            yield rope.at(range(start, start + n), like=x).apply(x, x)
        elif kind == 4:
            yield rope.unrotate(x)
        else:
            yield rope.apply(x, x, norm=rope_xp.QKNorm(x[0, 0, 0], x[0, 0, 1]))


def one_rope(make):
    """Ten thousand calls of one rope, of all kinds, lengths and two dtypes."""
    rope, random = RoPE(layout="half"), np.random.default_rng(0)
    for i in range(10_000):
        n, d = int(random.integers(1, 40)), (64, 128)[int(random.integers(2))]
        x, p = make(np.ones((1, n, 4, d), ("f4", "f2")[i % 2])), np.arange(n) + i
        norm = rope_xp.QKNorm(x[0, 0, 0], x[0, 0, 1])
        calls = (
            *(lambda x=x, p=p: rope.apply(x, x, p), lambda x=x, p=p: rope.rotate(x, p + 0.5)),
            *(lambda x=x: rope.rotate(x, out=x), lambda x=x, p=p: rope.unrotate(x, p.tolist())),
            lambda x=x, p=p: rope.rerotate(x, p, p + 1),
            lambda x=x, norm=norm: rope.apply(x, x, norm=norm),
            lambda x=x, p=p: rope.at(p, like=x).apply(x, x),
        )
        yield calls[i % len(calls)]()


KINDS = {f.__name__: f for f in (ropes, mixed, one_rope)}
KINDS["gradients"] = partial(angles, trains=True)


def main(kind, library):
    make = np.array
    if library != "numpy":
        module = importlib.import_module({"jax": "jax.numpy"}.get(library, library))
        make = module.tensor if library == "torch" else module.asarray
    # Calls hold neither what the slow path and compilers load nor what malloc keeps of arrays.
    RoPE().rerotate(make(np.ones((1, 2), np.float32)), [0], [1])
    for result in islice(KINDS[kind](make), 1 if kind == "one_rope" else 6):
        del result
    for n in range(1, 2200, 50):
        result = make(np.ones((3, n, 1, 128), np.float32)) * 2
    del result
    before = resident()
    for result in KINDS[kind](make):
        del result
    held = resident() - before
    rope_xp.clear_caches()
    print(f"{held:.0f} {resident() - before:.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
