"""The strictest reading of the array API standard."""

from __future__ import annotations

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import Linear

xp = pytest.importorskip("array_api_strict")

VERSIONS = ("2022.12", "2023.12", "2024.12", "2025.12")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("device", ["CPU_DEVICE", "device1", "device2"])
def test_every_version_with_every_flag_off(version: str, device: str) -> None:
    """No boolean indexing, no shapes that depend on data, no extension."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 3, 10)).astype(np.float32)
    positions = np.array([0, 1, 2047, 70_000, 1 << 22, (1 << 31) - 1, -1, -70_001, 5])
    where = xp.Device(device)
    with xp.ArrayAPIStrictFlags(
        api_version=version,
        boolean_indexing=False,
        data_dependent_shapes=False,
        enabled_extensions=(),
    ):
        made, p = xp.asarray(x, device=where), xp.asarray(positions, device=where)
        for rope in (
            RoPE(),
            RoPE(layout="half", rotary_dim=6, rotary_offset=2),
            RoPE(layout="interleaved_to_half", scaling=Linear(2.0)),
        ):
            for given in (p, positions, None):
                results = [
                    (
                        rope.rotate(made, given),
                        rope.rotate(x, None if given is None else positions),
                    ),
                    (
                        rope.unrotate(made, given),
                        rope.unrotate(x, None if given is None else positions),
                    ),
                ]
                for got, expected in results:
                    assert got.device == where
                    assert got.dtype == xp.float32
                    on_host = np.asarray(got.to_device(xp.Device("CPU_DEVICE")))
                    np.testing.assert_array_equal(on_host, expected)
        fractions = xp.asarray(positions + 0.5, device=where, dtype=xp.float64)
        RoPE().rotate(made, fractions)
        RoPE(position_axes=(0, 1, 0, 1, 1)).rotate(made, xp.stack([p, p]))
        RoPE().rerotate(made, p, positions)
        q, k = rope_xp.apply(made, made, p, axes="bshd")
        rope_xp.apply(made, made, out=(q, k))
        wide = RoPE().rotate(xp.astype(made, xp.float64), p)
        assert wide.dtype == xp.float64
        cos, sin = RoPE().cos_sin(p, 10)
        rope_xp.apply_tables(made, cos, sin)
        rope_xp.permute_weights(made, 1, to="half")


@pytest.mark.parametrize("device", ["no_float64", "no_x64"])
def test_devices_without_64_bits(device: str) -> None:
    """As on some GPUs: nothing of 64 bits may be sent there."""
    where = xp.Device(device)
    x = xp.ones((3, 2, 8), dtype=xp.float32, device=where)
    for positions in (None, [0, 1, 5], [0.5, 1.0, 2.0], np.arange(3) + 1_000_000):
        got = RoPE().rotate(x, positions)
        assert got.device == where
    given = xp.asarray(np.arange(3, dtype=np.int32), device=where)
    assert RoPE().rotate(x, given).dtype == xp.float32
