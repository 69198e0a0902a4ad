"""Shardings of jax on eight devices of one CPU; prints the cases that fail, and their number.

python tests/support/meshes.py KIND
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import itertools
import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rope_xp
from rope_xp import RoPE, positions

TOKENS, HEAD_DIM = 64, 32
COLLECTIVE = re.compile(r"all-(?:gather|reduce|to-all)|collective-\w+|reduce-scatter")
ROPE = RoPE(layout="half")
DEVICES = np.array(jax.devices())

random = np.random.default_rng(0)
Q, K = (random.standard_normal((4, TOKENS, n, HEAD_DIM)).astype(np.float32) for n in (8, 4))
AT = 1_000_000 + np.tile(np.arange(TOKENS, dtype=np.int32), (4, 1))


def moves(function, *arguments):
    """Return whether devices communicate in a function."""
    compiled = jax.jit(function).lower(*arguments).compile()
    return COLLECTIVE.search(compiled.as_text()) is not None


def close(found, right):
    return np.allclose(found, right, rtol=0, atol=2e-6)  # XLA fuses: 2 ulp of numbers below 6


def lies_as(found, x):
    return found.sharding.is_equivalent_to(x.sharding, x.ndim)


def spread(x, mesh, *axes):
    return jax.device_put(x, NamedSharding(mesh, P(*axes)))


def sharded(kind):
    """Batch, tokens and heads over devices, with positions that lie in each way."""
    on = Mesh(DEVICES.reshape(2, 2, 2), ("b", "t", "h"), axis_types=(AxisType[kind],) * 3)
    q, k = (spread(x, on, "b", "t", "h") for x in (Q, K))

    def loss(q, k, at):
        return sum((y**2).sum() for y in ROPE.apply(q, k, at))

    gradient = jax.grad(loss, argnums=(0, 1))
    for name, at in (("tokens", spread(AT, on, "b", "t")), ("all", spread(AT, on)), ("None", None)):
        expected = ROPE.apply(Q, K, None if at is None else AT)
        for how, function in (("eager", ROPE.apply), ("jit", jax.jit(ROPE.apply))):
            for x, y, right in zip((q, k), function(q, k, at), expected, strict=True):
                yield f"{name}, {how}: sharding", lies_as(y, x)
                yield f"{name}, {how}: values", close(y, right)
        for x, g in zip((q, k), jax.jit(gradient)(q, k, at), strict=True):
            yield f"{name}: sharding of the gradient", lies_as(g, x)
        for way, function in (("forward", ROPE.apply), ("backward", gradient)):
            yield f"{name}: {way} moves nothing", not moves(function, q, k, at)


def context_parallel():
    """Devices that see their own tokens only."""
    ring, split = jax.make_mesh((8,), ("t",)), P(None, "t")

    @partial(jax.shard_map, mesh=ring, in_specs=split, out_specs=split)
    def rotate(x):
        n = x.shape[1]
        return ROPE.rotate(x, jax.lax.axis_index("t") * n + jnp.arange(n, dtype=jnp.int32))

    x = spread(Q, ring, None, "t")
    yield "shard_map: values", close(rotate(x), ROPE.rotate(Q))
    yield "shard_map: nothing moves", not moves(rotate, x)


def caches(ring, kind):
    """Keys into slots of sharded caches: those whose slots are not split take them."""
    x, slots = Q[:2, :4, :2], np.array([[0, 1, 2, 3], [8, 9, 10, -1]])
    for axes, lead in (("bshd", (2, 8)), (None, (16,)), (None, (4, 4))):
        numbers = slots % 8 if axes else slots
        empty = np.zeros((*lead, 2, HEAD_DIM), np.float32)
        right, write = empty.copy(), partial(ROPE.apply, slots=numbers, cache_axes=axes)
        write(x, x, np.arange(4), out=(None, right))
        for at, how in itertools.product(range(len(lead) + 1), (lambda f: f, jax.jit)):
            cache, name = spread(empty, ring, *[None] * at, "b"), f"cache {lead} split at {at}"
            fill = how(lambda k, c, w=write: w(k, k, jnp.arange(4), out=(None, c))[1])
            try:
                found = fill(spread(x, ring, "b"), cache)
            except rope_xp.RopeError as error:
                refused = kind == "Explicit" and at == len(lead) - 1 > 0
                yield f"{name}: {error}", refused and "slots that are not sharded" in str(error)
            else:
                yield f"{name}: values", close(found, right)
                yield f"{name}: sharding", kind == "Auto" or lies_as(found, cache)


def masks(ring, kind):
    """Positions of masks: tokens that are split explicitly are refused."""
    mask = np.array([[0, 1, 1, 1], [1, 1, 1, 0]])
    for at, function in itertools.product((0, 1), (positions.from_mask, positions.from_segments)):
        name = f"{function.__name__} split at {at}"
        try:
            found = function(spread(mask, ring, *[None] * at, "b"))
            yield name, np.array_equal(found, function(mask))
        except rope_xp.RopeError as error:
            refused = kind == "Explicit" and at == 1
            yield f"{name}: {error}", refused and "sharded along tokens" in str(error)


def split_heads():
    """head_dim over devices: right, at a price."""
    ring = Mesh(DEVICES, ("d",), axis_types=(AxisType.Auto,))
    x = spread(Q, ring, None, None, None, "d")
    yield "values", close(jax.jit(ROPE.rotate)(x), ROPE.rotate(Q))
    yield "something moves", moves(ROPE.rotate, x)


def main(kind):
    """Print which cases of half heads fail, and how many cases there are."""
    ring = Mesh(DEVICES[:2], ("b",), axis_types=(AxisType[kind],))
    cases = [*sharded(kind), *caches(ring, kind), *masks(ring, kind)]
    cases += [*context_parallel(), *split_heads()]
    for name, holds in cases:
        if not holds:
            print(f"{name} does not hold")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main(*sys.argv[1:])
