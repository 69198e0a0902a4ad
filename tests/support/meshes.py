"""Shardings of jax on eight devices of one CPU; prints the cases that fail, and their number.

python tests/support/meshes.py PATH KIND
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

BATCH, TOKENS, HEADS, HEAD_DIM = 4, 64, 8, 32
COLLECTIVE = re.compile(r"all-(?:gather|reduce|to-all)|collective-\w+|reduce-scatter")
CLOSE = 2e-6  # XLA fuses multiply-add: 2 ulp of numbers below 6

random = np.random.default_rng(0)
Q = random.standard_normal((BATCH, TOKENS, HEADS, HEAD_DIM)).astype(np.float32)
K = random.standard_normal((BATCH, TOKENS, 4, HEAD_DIM)).astype(np.float32)
AT = 1_000_000 + np.tile(np.arange(TOKENS, dtype=np.int32), (BATCH, 1))


def by_numpy(function, *arguments):
    with rope_xp.use_path(None):
        return function(*arguments)


def collectives(function, *arguments):
    return sorted(set(COLLECTIVE.findall(jax.jit(function).lower(*arguments).compile().as_text())))


def sharded(kind):
    rope, axes = RoPE(layout="half"), ("b", "t", "h")
    on = Mesh(np.array(jax.devices()).reshape(2, 2, 2), axes, axis_types=(AxisType[kind],) * 3)
    q, k = (jax.device_put(x, NamedSharding(on, P(*axes))) for x in (Q, K))
    placed = {
        "as tokens": (jax.device_put(AT, NamedSharding(on, P("b", "t"))), AT),
        "replicated": (jax.device_put(AT, NamedSharding(on, P())), AT),
        "None": (None, AT[:1] - 1_000_000),
    }

    def loss(q, k, at):
        return sum((y**2).sum() for y in rope.apply(q, k, at))

    gradient = jax.grad(loss, argnums=(0, 1))
    for name, (at, known) in placed.items():
        expected = by_numpy(rope.apply, Q, K, known)
        for how, function in (("eager", rope.apply), ("jit", jax.jit(rope.apply))):
            found = function(q, k, at)
            for x, y, right in zip((q, k), found, expected, strict=True):
                yield f"{name}, {how}: sharding", y.sharding.is_equivalent_to(x.sharding, 4)
                yield f"{name}, {how}: values", np.allclose(y, right, rtol=0, atol=CLOSE)
        for x, g in zip((q, k), jax.jit(gradient)(q, k, at), strict=True):
            yield f"{name}: sharding of the gradient", g.sharding.is_equivalent_to(x.sharding, 4)
        yield f"{name}: forward moves nothing", not collectives(rope.apply, q, k, at)
        yield f"{name}: backward moves nothing", not collectives(gradient, q, k, at)


def context_parallel():
    """Devices that see their own tokens only, in order and in zigzag."""
    rope, ring = RoPE(layout="half"), jax.make_mesh((8,), ("t",))
    split = P(None, "t")
    right = by_numpy(rope.rotate, Q)

    @partial(jax.shard_map, mesh=ring, in_specs=split, out_specs=split)
    def in_order(x):
        n = x.shape[1]
        return rope.rotate(x, jax.lax.axis_index("t") * n + jnp.arange(n, dtype=jnp.int32))

    x = jax.device_put(Q, NamedSharding(ring, split))
    yield "in order: values", np.allclose(in_order(x), right, rtol=0, atol=CLOSE)
    yield "in order: nothing moves", not collectives(in_order, x)

    held = positions.zigzag(TOKENS, 8).reshape(-1)
    zigzag = jax.shard_map(rope.rotate, mesh=ring, in_specs=(split, P("t")), out_specs=split)
    x = jax.device_put(Q[:, held], NamedSharding(ring, split))
    at = jax.device_put(held.astype(np.int32), NamedSharding(ring, P("t")))
    yield "zigzag: values", np.allclose(zigzag(x, at), right[:, held], rtol=0, atol=CLOSE)
    yield "zigzag: nothing moves", not collectives(zigzag, x, at)


def caches(kind):
    """Keys into slots of sharded caches: those whose slots are not split take them."""
    rope, ring = (
        RoPE(layout="half"),
        Mesh(np.array(jax.devices()[:2]), ("b",), axis_types=(AxisType[kind],)),
    )
    x, slots = Q[:2, :4, :2], np.array([[0, 1, 2, 3], [8, 9, 10, -1]])
    for axes, shape, numbers in (
        ("bshd", (2, 8, 2, HEAD_DIM), slots % 8),
        (None, (16, 2, HEAD_DIM), slots),
        (None, (4, 4, 2, HEAD_DIM), slots),
    ):
        right = np.zeros(shape, np.float32)
        write = partial(rope.apply, slots=numbers, cache_axes=axes)
        by_numpy(partial(write, x, x, np.arange(4), out=(None, right)))
        slots_at = len(shape) - 3
        for at in range(len(shape) - 1):
            k, cache = (
                jax.device_put(y, NamedSharding(ring, spec))
                for y, spec in (
                    (x, P("b")),
                    (np.zeros(shape, np.float32), P(*[None] * at, "b")),
                )
            )
            name = f"cache {shape} split at {at}"
            for how in (lambda f: f, jax.jit):
                function = how(lambda k, c, w=write: w(k, k, jnp.arange(4), out=(None, c))[1])
                try:
                    found = function(k, cache)
                except rope_xp.RopeError as error:
                    refused = kind == "Explicit" and at == slots_at > 0
                    yield f"{name}: {error}", refused and "slots that are not sharded" in str(error)
                else:
                    yield f"{name}: values", np.allclose(found, right, rtol=0, atol=CLOSE)
                    same = found.sharding.is_equivalent_to(cache.sharding, len(shape))
                    yield f"{name}: sharding", same or kind == "Auto"


def masks(kind):
    """Positions of masks: tokens that are split explicitly are refused."""
    ring = Mesh(np.array(jax.devices()[:2]), ("b",), axis_types=(AxisType[kind],))
    mask = np.array([[0, 1, 1, 1], [1, 1, 1, 0]])
    for at, function in itertools.product((0, 1), (positions.from_mask, positions.from_segments)):
        x = jax.device_put(mask, NamedSharding(ring, P(*[None] * at, "b")))
        name = f"{function.__name__} split at {at}"
        try:
            yield name, np.array_equal(function(x), function(mask))
        except rope_xp.RopeError as error:
            refused = kind == "Explicit" and at == 1
            yield f"{name}: {error}", refused and "sharded along tokens" in str(error)


def split_heads():
    """head_dim over devices: right, at a price."""
    ring = Mesh(np.array(jax.devices()), ("d",), axis_types=(AxisType.Auto,))
    rope = RoPE(layout="half")
    x = jax.device_put(Q, NamedSharding(ring, P(None, None, None, "d")))
    found = jax.jit(rope.rotate)(x)
    yield "values", np.allclose(found, by_numpy(rope.rotate, Q), rtol=0, atol=CLOSE)
    yield "something moves", bool(collectives(rope.rotate, x))


def main(path, kind):
    """Print which cases of half heads fail, and how many cases there are."""
    with rope_xp.use_path(path):
        cases = [*sharded(kind), *caches(kind), *masks(kind), *context_parallel(), *split_heads()]
    for name, holds in cases:
        if not holds:
            print(f"{name} does not hold")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main(*sys.argv[1:])
