"""Sections of unequal length, a base for each axis: against mpmath and against slices of a head."""

from __future__ import annotations

import dataclasses
from typing import Any

import mpmath
import numpy as np
import pytest
from support.oracles import pair_indices, rotate_complex, true_cos_sin
from support.targets import Target, rows

import rope_xp
from rope_xp import RoPE, RopeError, positions
from rope_xp.scaling import Axial, RIFLEx

# Flux, Wan at head_dim 128, Cosmos with its bases, sections that are partial, four axes.
CASES: tuple[tuple[tuple[int, ...], tuple[float, ...] | None, str], ...] = (
    ((16, 56, 56), None, "blocks"),
    ((44, 42, 42), None, "blocks"),
    ((44, 42, 42), (20676.6, 10000.0, 5000.0), "blocks"),
    ((6, 10), (256.0, 1000.0), "alternating"),
    ((8, 2, 4, 2), None, "alternating"),
)


def expected_frequencies(
    sections: tuple[int, ...], bases: tuple[float, ...], order: str
) -> tuple[list[float], list[int]]:
    """Return the frequency and the axis of each pair, by mpmath, dealt out one at a time."""
    left = [list(range(n // 2)) for n in sections]
    taken: list[tuple[int, int]] = []
    while any(left):
        for axis, series in enumerate(left):
            some = len(series) if order == "blocks" else min(1, len(series))
            taken += [(axis, series.pop(0)) for _ in range(some)]
    with mpmath.workdps(50):
        values = [
            float(mpmath.mpf(bases[axis]) ** (-mpmath.mpf(2 * j) / sections[axis]))
            for axis, j in taken
        ]
    return values, [axis for axis, _ in taken]


@pytest.mark.parametrize(("sections", "bases", "order"), CASES)
def test_frequencies(
    sections: tuple[int, ...], bases: tuple[float, ...] | None, order: str
) -> None:
    rope = RoPE.axial(sections, bases=bases, order=order, base=777.0)
    values, axes = expected_frequencies(sections, bases or (777.0,) * len(sections), order)
    assert rope.position_axes == tuple(axes)
    assert rope.rotary_dim == sum(sections)
    assert rope.frequencies(sum(sections) + 8).tolist() == values
    assert hash(rope) == hash(RoPE.axial(list(sections), bases=bases, order=order, base=777.0))


@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_each_section_is_a_rope_of_its_own(backend: Target, layout: Any) -> None:
    sections, bases, offset = (4, 12, 8), (100.0, 1e4, 300.0), 6
    at = positions.video(2, 3, 5) + np.array([[7], [1_000_003], [-2]])
    x = np.random.default_rng(0).standard_normal((1, at.shape[1], 2, 32)).astype(np.float32)
    rope = RoPE.axial(sections, bases=bases, layout=layout, rotary_offset=offset)
    first, second = pair_indices(layout, sum(sections))[0]
    expected = x.astype(np.float64)
    start = 0
    for axis, n in enumerate(sections):
        cos, sin = true_cos_sin(at[axis].tolist(), bases[axis], n)
        mine = slice(start, start + n // 2)
        columns = [offset + c for c in (*first[mine], *second[mine])]
        angles = np.arctan2(sin, cos)[:, None, :]
        expected[..., columns] = rotate_complex(expected[..., columns], angles, "half")
        start += n // 2
    found = backend.back(rope.rotate(backend.make(x), at))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)


def test_the_equal_case_is_that_of_today() -> None:
    equal = RoPE(rotary_dim=12, position_axes=(0, 0, 1, 1, 2, 2), scaling=Axial(3))
    given = RoPE.axial((4, 4, 4))
    assert equal.position_axes == given.position_axes
    assert np.array_equal(equal.frequencies(12), given.frequencies(12))


def test_positions_of_one_component_are_refused() -> None:
    x = np.ones((1, 6, 2, 8), np.float32)
    with pytest.raises(RopeError, match=r"leading axis of 3: \(3, batch..., tokens\)"):
        RoPE.axial((4, 2, 2)).rotate(x, np.arange(6))


WRONG: tuple[tuple[str, type[Exception], Any], ...] = (
    ("must be even", RopeError, lambda: RoPE.axial((3, 5))),
    ("must be positive", RopeError, lambda: RoPE.axial((0, 4))),
    (r"sections\[0\] must be an integer", TypeError, lambda: RoPE.axial((2.0, 4))),  # type: ignore[arg-type]  # the mistake
    ("sections is empty", RopeError, lambda: RoPE.axial(())),
    ("sections must be a tuple", TypeError, lambda: RoPE.axial(64)),  # type: ignore[arg-type]  # the mistake
    ("bases must be 2 numbers", RopeError, lambda: RoPE.axial((2, 4), bases=(1.0,))),
    (r"bases\[1\] must be positive", RopeError, lambda: RoPE.axial((2, 4), bases=(1.0, 0.0))),
    ("takes neither sections", RopeError, lambda: RoPE.axial((2, 4), order="strided")),
    ("order must be one of", RopeError, lambda: RoPE.axial((2, 4), order="rows")),
    ("makes rotary_dim", TypeError, lambda: RoPE.axial((2, 4), rotary_dim=6)),
    ("unknown option theta", TypeError, lambda: RoPE.axial((2, 4), theta=1.0)),
    ("contradicts sections", RopeError, lambda: Axial(4, sections=(2, 2))),
    ("sum to 6", RopeError, lambda: Axial(sections=(2, 4)).frequencies(1e4, 8)),
)


@pytest.mark.parametrize(("said", "kind", "make"), WRONG)
def test_errors(said: str, kind: type[Exception], make: Any) -> None:
    with pytest.raises(kind, match=said):
        make()


def test_components_need_position_axes() -> None:
    """Else all pairs would read the one position of a token, two series of frequencies long."""
    for make in (
        lambda: RoPE(scaling=Axial()),
        lambda: RoPE(scaling=Axial(sections=(4, 12)), rotary_dim=16),
        lambda: dataclasses.replace(RoPE.axial((4, 4)), position_axes=None),
        lambda: rope_xp.apply(np.ones((2, 8)), np.ones((2, 8)), scaling=Axial()),
        lambda: RoPE(scaling=RIFLEx(1, 42, scaling=Axial())),
    ):
        with pytest.raises(RopeError, match=r"2 components.*position_axes is None.*RoPE.axial"):
            make()
    assert RoPE(scaling=Axial(1)).frequencies(8).tolist() == RoPE().frequencies(8).tolist()
