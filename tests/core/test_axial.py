"""Sections of unequal length, a base for each axis, and RIFLEx: against mpmath and single ropes."""

import math

import numpy as np
import pytest
from support.oracles import exact_frequencies, pair_indices, rotate_complex, true_cos_sin
from support.targets import rows

from rope_xp import RoPE, positions
from rope_xp.scaling import Axial, Linear, RIFLEx


@pytest.mark.parametrize(
    ("sections", "bases", "order"),
    [
        ((44, 42, 42), (20676.6, 10000.0, 5000.0), "blocks"),  # Cosmos
        ((6, 10), (256.0, 1000.0), "alternating"),
        ((8, 2, 4, 2), None, "alternating"),
    ],
)
def test_axial_pairs_have_the_frequency_and_axis_of_their_section(sections, bases, order):
    options = {"bases": bases, "order": order, "base": 777.0}
    rope = RoPE.axial(sections, **options)
    bases = bases or (777.0,) * len(sections)
    series = [list(exact_frequencies(b, n)) for b, n in zip(bases, sections, strict=True)]
    pairs = []
    while any(series):
        for axis, left in enumerate(series):
            count = len(left) if order == "blocks" else min(1, len(left))
            pairs += [(float(left.pop(0)), axis) for _ in range(count)]
    assert rope.position_axes == tuple(axis for _, axis in pairs)
    assert rope.rotary_dim == sum(sections)
    assert rope.frequencies(sum(sections) + 8).tolist() == [frequency for frequency, _ in pairs]
    assert hash(rope) == hash(RoPE.axial(list(sections), **options))


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_each_section_is_rotated_as_by_a_rope_of_its_own(backend, layout):
    sections, bases, offset = (4, 12, 8), (100.0, 1e4, 300.0), 6
    cells = positions.video(2, 3, 5) + np.array([[7], [1_000_003], [-2]])
    x = np.random.default_rng(0).standard_normal((1, cells.shape[1], 2, 32), np.float32)
    rope = RoPE.axial(sections, bases=bases, layout=layout, rotary_offset=offset)
    first, second = pair_indices(layout, sum(sections))[0]
    expected = x.astype(np.float64)
    start = 0
    for line, base, n in zip(cells.tolist(), bases, sections, strict=True):
        cos, sin = true_cos_sin(line, base, n)
        section = slice(start, start + n // 2)
        columns = [offset + c for c in (*first[section], *second[section])]
        angles = np.arctan2(sin, cos)[:, None, :]
        expected[..., columns] = rotate_complex(expected[..., columns], angles, "half")
        start += n // 2
    rotated = backend.back(rope.rotate(backend.make(x), cells))
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("riflex", "changed"),
    [
        (RIFLEx(4, 42), 3),
        (RIFLEx(8, 42, Axial(sections=(16, 56, 56))), 7),  # HunyuanVideo
        # frame, row, frame, row, row, row
        (RIFLEx(3, 42, Axial(sections=(4, 8), order="alternating"), axis=1), 4),
    ],
)
def test_riflex_slows_one_frequency_of_one_axis_alone(riflex, changed):
    r = 12 if riflex.axis else 128
    expected = (riflex.scaling or Linear(1.0)).frequencies(256.0, r).copy()
    expected[changed] = 0.9 * 2 * math.pi / 42  # as in the code of the paper
    np.testing.assert_allclose(riflex.frequencies(256.0, r), expected, rtol=1e-14)
