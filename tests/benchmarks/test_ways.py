"""Every public way to call equals its formula, and is no slower by far."""

import numpy as np
import pytest

import rope_xp
from asv_benchmarks import entries
from asv_benchmarks.shared import ways


def flatten(results):
    if isinstance(results, rope_xp.Angles):
        results = results.cos, results.sin
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", entries.NAMES)
def test_a_way_to_call_equals_its_formula(library, name):
    pytest.importorskip(library)
    # Each from inputs of its own, as some are written to.
    wanted = flatten(ways.build(library, "float32", 3)[name].formula())
    got = flatten(ways.build(library, "float32", 3)[name].call())
    for y, expected in zip(got, wanted, strict=True):
        difference = np.asarray(y) - np.asarray(expected)[..., : y.shape[-1]]  # cos for each pair
        if name == "cumulative_angles":  # less whole turns
            difference -= 2 * np.pi * np.round(difference / (2 * np.pi))
        # Angles of the formula are off by some 2**-12 at position 5000.
        assert np.abs(difference).max() < 8e-3


@pytest.mark.parametrize(
    ("library", "mode"), [("numpy", "plain"), ("torch", "plain"), ("torch", "gradients")]
)
def test_no_way_to_call_takes_far_longer_than_its_formula(library, mode):
    pytest.importorskip(library)
    slower = {}
    for name, way in ways.build(library, "float32", grad=mode == "gradients").items():
        for _ in range(3):  # other programs may run
            call, formula = entries.measure(way.call, way.formula, 5)
            # Sums are exact here alone.
            if call <= (20.0 if name == "cumulative_angles" else 2.5) * formula:
                break
        else:
            slower[name] = round(call / formula, 1)
    assert not slower
