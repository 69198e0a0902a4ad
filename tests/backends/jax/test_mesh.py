"""Shardings of jax pass through a rotation, and nothing moves between devices."""

import os
import subprocess
import sys

import pytest
from support.exhaustive import exhaustive
from support.programs import printed

pytest.importorskip("jax")


@pytest.mark.parametrize(
    ("path", "kind", "least"),
    [("jit", "Auto", 20), *(exhaustive("jit", "", 800), exhaustive("jit-gpu", "Explicit", 20))],
)
def test_on_eight_devices(path: str, kind: str, least: int) -> None:
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    lines = printed("meshes.py", path, kind, options=("-W", "error"))
    count, *rest = lines.split(maxsplit=1)
    assert rest == ["cases\n"], lines
    assert int(count) > least


MESHES = """
import jax, jax.numpy as jnp, numpy as np, rope_xp
from jax.sharding import NamedSharding, PartitionSpec as P

one, two = jax.make_mesh((8,), ("a",)), jax.make_mesh((4, 2), ("x", "y"))
rope, p = rope_xp.RoPE(), np.arange(16) + 1_000_000
x = np.random.default_rng(0).standard_normal((8, 16, 8, 16)).astype(np.float32)
expected = rope.rotate(x, p)
with jax.set_mesh(one):
    rope.rotate(jnp.asarray(x), p)
for spec in (P("x"), P(None, "x"), P(None, None, "x"), P("x", "y")):
    placed = jax.device_put(x, NamedSharding(two, spec))
    for function in (rope.rotate, jax.jit(lambda x: rope.rotate(x, p))):
        got = function(placed, p) if function == rope.rotate else function(placed)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        assert got.sharding.is_equivalent_to(placed.sharding, 4), (spec, got.sharding)
fifth = jax.device_put(x, jax.devices()[5])
assert rope.rotate(fifth, p).devices() == {jax.devices()[5]}
"""


@pytest.mark.exhaustive
def test_meshes_and_devices() -> None:
    """Eight devices, in a process that is told so before jax starts."""
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run([sys.executable, "-W", "error", "-c", MESHES], env=env, check=True, timeout=300)
