"""Compile a rotation of ten million tokens for many devices, and print what each would hold.

    python docs/tools/memory_per_device.py

Nothing of that size is allocated: XLA compiles for as many simulated devices and tells how many
bytes each needs. What one device does is then timed, at the first and at the last positions.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=128"
os.environ["JAX_PLATFORMS"] = "cpu"

import re
import time
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
TIMED = 4096
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


def microseconds(first: int) -> float:
    """Return the time of a token, of the share of a device whose tokens start at ``first``."""
    q, k = (jnp.ones((1, TIMED, heads, HEAD_DIM), jnp.bfloat16) for heads in (HEADS, KEY_HEADS))
    at = first + jnp.arange(TIMED, dtype=jnp.int32)
    run = jax.jit(ROPE.apply)
    best = np.inf
    for _ in range(20):
        start = time.perf_counter()
        jax.block_until_ready(run(q, k, at))
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / TIMED


def main() -> None:
    heads = "devices", "tokens per device", "q and k per device", "extra memory, at most"
    print(f"| {' | '.join(heads)} | collectives |")
    print("|---|---|---|---|---|")
    for devices in DEVICES:
        forward, backward = compiled(devices)
        memory = forward.memory_analysis()
        found = sum(len(COLLECTIVE.findall(f.as_text())) for f in (forward, backward))
        held = memory.argument_size_in_bytes - 4 * TOKENS // devices
        print(
            f"| {devices} | {TOKENS // devices} | {held / 2**20:.0f} MiB "
            f"| {memory.temp_size_in_bytes / 2**20:.1f} MiB | {found} |"
        )
    last = TOKENS - TIMED
    print(f"\na token at 0: {microseconds(0):.2f} us; at {last}: {microseconds(last):.2f} us")


if __name__ == "__main__":
    main()
