"""The strictest reading of the array API standard."""

import numpy as np
import pytest
from support.equality import LAYOUTS, POSITIONS

import rope_xp
from rope_xp import RoPE

xp = pytest.importorskip("array_api_strict")


@pytest.mark.parametrize("version", ["2022.12", "2025.12"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_version_of_the_standard_with_every_flag_off_is_enough(version, layout):
    """No boolean indexing, no shapes that depend on data, no extension."""
    x = np.random.default_rng(0).standard_normal((2, 9, 3, 10), np.float32)
    rope = RoPE(layout=layout, rotary_dim=6, rotary_offset=2, position_axes=(0, 0, 0))
    flags = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}
    with xp.ArrayAPIStrictFlags(api_version=version, **flags):
        there, p = (xp.asarray(y, device=xp.Device("device1")) for y in (x, POSITIONS[None]))
        for given in (p, POSITIONS[None], None):
            rotated = rope.rotate(there, given)
            assert rotated.device == there.device
            expected = rope.rotate(x, None if given is None else POSITIONS[None])
            rotated = np.asarray(rotated.to_device(xp.Device("CPU_DEVICE")))
            np.testing.assert_array_equal(rotated, expected)
        rope.unrotate(there, p)
        rope.rotate(there, xp.astype(p, xp.float64) / 2)
        rope.rerotate(there, p, POSITIONS[None])
        q, k = rope.apply(there, there, p, axes="bshd")
        rope.apply(there, there, out=(q, k))
        assert rope.rotate(xp.astype(there, xp.float64), p).dtype == xp.float64
        rope_xp.apply_tables(there, *RoPE().cos_sin(p[0, ...], 10))
        rope_xp.permute_weights(there, 1, to="half")


@pytest.mark.parametrize("device", ["no_float64", "no_x64"])
def test_devices_without_64_bits_get_nothing_of_64_bits(device):
    x = xp.ones((3, 2, 8), dtype=xp.float32, device=xp.Device(device))
    there = xp.asarray([5, 6, 7], dtype=xp.int32, device=x.device)
    for positions in (None, [0, 1, 5], [0.5, 1.0, 2.0], there):
        assert RoPE().rotate(x, positions).device == x.device
