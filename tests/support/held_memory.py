"""Print by how many MiB the process grows over calls of a kind, and what is left after clearing."""

import gc
import importlib
import sys
from collections import deque
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

import rope_xp
from rope_xp import RoPE, scaling


def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    return pages * 4096 / 2**20


def ropes(make):
    for i in range(210):
        yield RoPE(base=1e4 + i // 3, layout="half").rotate(make(np.ones((4, 2, 128), "f4")))


def gradients(make):
    """Prompts of many lengths, each with angles of its own."""
    for n in [n for n in range(1500, 2200, 16) for _ in range(3)]:
        x = make(np.ones((1, n, 1, 128), np.float32)).requires_grad_()
        y = RoPE(layout="half").at(np.arange(n), like=x).rotate(x)
        y.sum().backward()
        yield y.detach()


def mixed(make):
    many = [RoPE(base=5e3 + i, layout="half") for i in range(30)]
    many += [RoPE(scaling=scaling.DynamicNTK(2.0, 16)).for_length(n) for n in range(17, 47)]
    return call_at_random(make, many, 150, most_tokens=400)


def one_rope(make):
    return call_at_random(make, [RoPE(layout="half")], 10_000, most_tokens=40)


def call_at_random(make, many, count, most_tokens):
    """Make calls of all kinds and lengths, of two widths and dtypes."""
    random = np.random.default_rng(0)
    for i in range(count):
        rope, n = many[random.integers(len(many))], int(random.integers(1, most_tokens))
        p, shape = np.arange(n) + i, (1, n, 4, (64, 128)[i % 2])
        x = make(np.ones(shape, ("f4", "f2")[i // 2 % 2]))
        calls = (
            *(partial(rope.apply, x, x, p), partial(rope.rotate, x, p + 0.5)),
            *(partial(rope.rotate, x, out=x), partial(rope.unrotate, x, p.tolist())),
            *(partial(rope.rerotate, x, p, p + 1), partial(rope.at(p, like=x).apply, x, x)),
            partial(rope.apply, x, x, norm=rope_xp.QKNorm(x[0, 0, 0], x[0, 0, 1])),
        )
        yield calls[random.integers(len(calls))]()


def main(kind, library):
    make = importlib.import_module({"jax": "jax.numpy"}.get(library, library)).asarray
    calls = globals()[kind]
    # Calls hold neither what the slow path and compilers load nor what malloc keeps of arrays.
    RoPE().rerotate(make(np.ones((1, 2), np.float32)), [0], [1])
    deque(islice(calls(make), 1 if kind == "one_rope" else 6), maxlen=0)
    deque((make(np.ones((3, n, 1, 128), "f4")) * 2 for n in range(1, 2200, 50)), maxlen=0)
    before = resident()
    deque(calls(make), maxlen=0)
    held = resident() - before
    rope_xp.clear_caches()
    print(f"{held:.0f} {resident() - before:.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
