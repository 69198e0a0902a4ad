"""Every public way to call has a row beside its formula, equals it, and is no slower by far."""

import importlib.util
import inspect

import numpy as np
import pytest

import rope_xp
from asv_benchmarks import entries
from asv_benchmarks.shared import ways
from rope_xp import Angles, Choice, RoPE

METHODS = {
    RoPE: "apply rotate unrotate rerotate at with_tables cos_sin table for_length",
    Angles: "apply rotate unrotate",
    Choice: "apply at",
}
FUNCTIONS = "apply apply_tables apply_angles apply_frequencies cumulative_angles"
PLAIN = "self q k x positions old_positions new_positions steps axis cos sin angles frequencies"
ELSEWHERE = {
    "RoPE.cos_sin:device", "RoPE.table:device", "RoPE.cos_sin:dtype", "RoPE.table:dtype",
    "RoPE.cos_sin:head_dim", "RoPE.table:head_dim", "RoPE.table:length", "RoPE.table:form",
    "RoPE.table:xp", "RoPE.for_length:n", "Choice.at:like", "Choice.apply:norm",
    "cumulative_angles:cu_seqlens",
}  # fmt: skip
"""What changes what is computed, and not how it is called; or has another row's way."""
MOST = {"cumulative_angles": 20.0}
"""Times of the formula that a way may take where 2.0 do not suffice: sums are exact here alone."""


def list_surface() -> set[str]:
    surface, plain = set(), set(PLAIN.split())
    named = {
        f"{cls.__name__}.{n}": getattr(cls, n) for cls, ns in METHODS.items() for n in ns.split()
    }
    named |= {n: getattr(rope_xp, n) for n in FUNCTIONS.split()}
    for name, function in named.items():
        surface.add(name)
        parameters = set(inspect.signature(function).parameters) - plain
        surface |= {f"{name}:{parameter}" for parameter in parameters}
    return surface


def test_each_public_way_to_call_has_a_row():
    covered = {name for way in ways.build("numpy", "float32").values() for name in way.covers}
    missing = list_surface() - covered - ELSEWHERE
    assert not missing, "add a row to asv_benchmarks/shared/ways.py"
    assert covered - {"Choice", "QKNorm", "QKNorm:round_between"} <= list_surface() | {
        f"{name}:positions" for name in list_surface()
    }


def flatten(results):
    if isinstance(results, rope_xp.Angles):
        results = results.cos, results.sin
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", entries.NAMES)
def test_a_way_to_call_equals_its_formula(library, name):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    # Each from inputs of its own, as some are written to.
    wanted = flatten(ways.build(library, "float32", 3)[name].formula())
    got = flatten(ways.build(library, "float32", 3)[name].call())
    for y, expected in zip(got, wanted, strict=True):
        difference = np.asarray(y) - np.asarray(expected)[..., : y.shape[-1]]  # cos for each pair
        if name == "cumulative_angles":  # less whole turns
            difference -= 2 * np.pi * np.round(difference / (2 * np.pi))
        # Angles of the formula are off by some 2**-12 at position 5000.
        assert np.abs(difference).max() < 8e-3


@pytest.mark.parametrize("mode", entries.MODES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_way_to_call_takes_far_longer_than_its_formula(library, mode):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if library == "numpy" and mode == "gradients":
        pytest.skip("numpy records no gradients")
    slower = {}
    for name, way in ways.build(library, "float32", grad=mode == "gradients").items():
        for _ in range(3):  # other programs may run
            call, formula = entries.measure(way.call, way.formula, 5)
            if call <= MOST.get(name, 2.5) * formula:
                break
        else:
            slower[name] = round(call / formula, 1)
    assert not slower
