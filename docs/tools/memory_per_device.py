"""Compile a rotation of ten million tokens for many devices, and print what each would hold.

Nothing of that size is allocated: XLA compiles for as many simulated devices and tells how many
bytes each needs. A line has the bytes of q and k, of other memory, and the count of collectives.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=128"
os.environ["JAX_PLATFORMS"] = "cpu"

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rope_xp import RoPE

TOKENS = 10 * 2**20
HEADS, KEY_HEADS, HEAD_DIM = 32, 8, 128
DEVICES = (8, 32, 128)
COLLECTIVE = re.compile(r"all-\w+|collective-\w+|reduce-scatter")

ROPE = RoPE(base=5e5, layout="half")


def gradient(q: Any, k: Any, positions: Any) -> Any:
    """Return what a layer sends back through the rotation."""
    rotated, back = jax.vjp(lambda q, k: ROPE.apply(q, k, positions), q, k)
    return back(rotated)


def compiled(devices: int) -> tuple[Any, Any]:
    """Return the rotation and its gradient for tokens over so many devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tokens",))
    of = NamedSharding(mesh, P(None, "tokens"))
    q, k = (
        jax.ShapeDtypeStruct((1, TOKENS, heads, HEAD_DIM), jnp.bfloat16, sharding=of)
        for heads in (HEADS, KEY_HEADS)
    )
    at = jax.ShapeDtypeStruct((TOKENS,), jnp.int32, sharding=NamedSharding(mesh, P("tokens")))
    return tuple(jax.jit(f).lower(q, k, at).compile() for f in (ROPE.apply, gradient))


def main() -> None:
    for devices in DEVICES:
        forward, backward = compiled(devices)
        memory = forward.memory_analysis()
        found = sum(len(COLLECTIVE.findall(f.as_text())) for f in (forward, backward))
        held = memory.argument_size_in_bytes - 4 * TOKENS // devices
        print(held, memory.temp_size_in_bytes, found)


if __name__ == "__main__":
    main()
