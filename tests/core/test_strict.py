"""The strictest reading of the array API standard."""

import numpy as np
import pytest
from support.equality import POSITIONS

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import Linear

xp = pytest.importorskip("array_api_strict")
ROPES = (
    RoPE(),
    RoPE(layout="half", rotary_dim=6, rotary_offset=2),
    RoPE(layout="interleaved_to_half", scaling=Linear(2.0)),
)


@pytest.mark.parametrize("version", ["2022.12", "2023.12", "2024.12", "2025.12"])
@pytest.mark.parametrize("device", ["CPU_DEVICE", "device1", "device2"])
def test_every_version_of_the_standard_with_every_flag_off_is_enough(version, device):
    """No boolean indexing, no shapes that depend on data, no extension."""
    x = np.random.default_rng(0).standard_normal((2, 9, 3, 10), np.float32)
    where = xp.Device(device)
    flags = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}
    with xp.ArrayAPIStrictFlags(api_version=version, **flags):
        there, p = xp.asarray(x, device=where), xp.asarray(POSITIONS, device=where)
        pairs = ((p, POSITIONS), (POSITIONS, POSITIONS), (None, None))
        for rotate in (method for r in ROPES for method in (r.rotate, r.unrotate)):
            for given, on_host in pairs:
                rotated = rotate(there, given)
                assert (rotated.device, rotated.dtype) == (where, xp.float32)
                rotated = np.asarray(rotated.to_device(xp.Device("CPU_DEVICE")))
                np.testing.assert_array_equal(rotated, rotate(x, on_host))
        fractions = xp.asarray(POSITIONS / 2, device=where, dtype=xp.float64)
        RoPE().rotate(there, fractions)
        RoPE(position_axes=(0, 1, 0, 1, 1)).rotate(there, xp.stack([p, p]))
        RoPE().rerotate(there, p, POSITIONS)
        q, k = rope_xp.apply(there, there, p, axes="bshd")
        rope_xp.apply(there, there, out=(q, k))
        assert RoPE().rotate(xp.astype(there, xp.float64), p).dtype == xp.float64
        rope_xp.apply_tables(there, *RoPE().cos_sin(p, 10))
        rope_xp.permute_weights(there, 1, to="half")


@pytest.mark.parametrize("device", ["no_float64", "no_x64"])
def test_devices_without_64_bits_get_nothing_of_64_bits(device):
    where = xp.Device(device)
    x = xp.ones((3, 2, 8), dtype=xp.float32, device=where)
    for positions in (None, [0, 1, 5], [0.5, 1.0, 2.0], np.arange(3) + 1_000_000):
        assert RoPE().rotate(x, positions).device == where
    positions = xp.asarray(np.arange(3, dtype=np.int32), device=where)
    assert RoPE().rotate(x, positions).dtype == xp.float32
