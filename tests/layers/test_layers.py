"""What is true of the layers of every framework."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.layers import FRAMEWORKS, ROPES, RULES, Framework, every_framework, inputs, same

import rope_xp
from rope_xp import Angles, RoPE, RopeError, scaling

every_rope = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)


@pytest.mark.covering
@every_framework
@every_rope
def test_it_rotates_as_its_rope_does(framework: Framework, rope: RoPE) -> None:
    q, k, positions = inputs(framework, rope)
    same(framework.layer(rope)(q, k, positions), rope.apply(q, k, positions))
    same(framework.layer(rope)(q, k), rope.apply(q, k))


@every_framework
def test_axes_and_positions_of_keys(framework: Framework) -> None:
    rope = ROPES["half"]
    layer = framework.layer(rope, axes="bhsd")
    q, k, positions = inputs(framework, rope)
    at = {"positions": positions[:, :4], "k_positions": positions[:, 1:3]}
    found = layer(q, k, **at)
    expected = rope.apply(q, k, axes="bhsd", **at)
    same(found, expected)


@pytest.mark.covering
@every_framework
@every_rope
def test_angles_of_a_forward_pass(framework: Framework, rope: RoPE) -> None:
    q, k, positions = inputs(framework, rope)
    angles = framework.layer(rope).at(positions, like=q)
    assert isinstance(angles, Angles)
    assert angles.rope == rope
    same((angles.cos, angles.sin), (rope.at(positions, like=q).cos, rope.at(positions, like=q).sin))
    same(angles.apply(q, k), rope.at(positions, like=q).apply(q, k))


@pytest.mark.covering
@every_framework
@every_rope
def test_copies(framework: Framework, rope: RoPE) -> None:
    layer = framework.layer(rope, axes="bshd")
    q, k, positions = inputs(framework, rope)
    expected = rope.apply(q, k, positions)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert copied.rope == rope
        assert copied.axes == "bshd"
        same(copied(q, k, positions), expected)


@every_framework
@pytest.mark.parametrize("rope", RULES.values(), ids=RULES)
def test_every_rule_is_saved_and_loaded(framework: Framework, rope: RoPE, tmp_path: Path) -> None:
    loaded = framework.reloaded(framework.layer(rope, axes="bshd"), tmp_path)
    assert (loaded.rope, loaded.axes) == (rope, "bshd")
    assert repr(loaded.rope) == repr(rope)
    q, k, positions = inputs(framework, rope)
    same(loaded(q, k, positions), rope.apply(q, k, positions))


def test_those_are_all_rules() -> None:
    kinds = {value for value in vars(scaling).values() if isinstance(value, type)}
    rules = {kind for kind in kinds if issubclass(kind, scaling.Scaling)} - {scaling.Scaling}
    assert {type(rope.scaling) for rope in RULES.values()} == rules


@every_framework
def test_it_holds_nothing(framework: Framework) -> None:
    layer = framework.layer(ROPES["yarn"])
    q, k, positions = inputs(framework, ROPES["yarn"])
    layer(q, k, positions)
    layer.at(positions, like=q)
    assert framework.held(layer) == []


@every_framework
def test_the_rope_of_a_configuration(framework: Framework) -> None:
    llama = {"model_type": "llama", "head_dim": 16, "rope_theta": 5e5}
    rope = rope_xp.from_hf_config(llama)
    q, k, positions = inputs(framework, RoPE())
    same(framework.layer(rope)(q, k, positions), rope.apply(q, k, positions))
    gemma = rope_xp.from_hf_config({"model_type": "gemma3_text"})
    with pytest.raises(RopeError, match=r"a RoPE for each of 'full_attention', 'sliding_.*rope\["):
        framework.layer(gemma)
    assert framework.layer(gemma["full_attention"]).rope.base == 1e6  # type: ignore[index,union-attr]  # a dict of ropes


@every_framework
@pytest.mark.parametrize("wrong", [None, 10000.0, "half"])
def test_what_is_no_rope(framework: Framework, wrong: Any) -> None:
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got"):
        framework.layer(wrong)


@every_framework
def test_its_example(framework: Framework) -> None:
    pytest.importorskip(framework.name)
    module = importlib.import_module(f"rope_xp.layers.{framework.name}")
    ran = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert ran.attempted > 4
    assert ran.failed == 0


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
def test_it_is_small(framework: Framework) -> None:
    spec = importlib.util.find_spec(f"rope_xp.layers.{framework.name}")
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:  # noqa: PTH123  # a line each is all it takes
        assert sum(1 for _ in file) <= 80


def test_nothing_brings_layers_unasked() -> None:
    code = (
        "import sys, numpy as np, rope_xp; x = np.ones((1, 2, 3, 4)); rope_xp.apply(x, x)\n"
        "import rope_xp.layers\n"
        "assert not [m for m in ('flax', 'equinox', 'keras', 'torch') if m in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


CALLS = {"torch": 3, "flax": 3, "equinox": 5}
"""Python functions that a call of a layer runs beside those of its rope; Keras some hundred."""


@pytest.mark.parametrize("framework", FRAMEWORKS[:3], ids=lambda f: f.name)
def test_it_adds_little_to_a_call(framework: Framework) -> None:
    """Counts do not vary as times do: 3 us in all, beyond the rope's own, is what was asked for."""
    rope = ROPES["half"]
    layer, arguments = framework.layer(rope), inputs(framework, rope, tokens=1)
    added = functions_run(layer, arguments) - functions_run(rope.apply, arguments)
    assert added <= CALLS[framework.name]


def functions_run(function: Any, arguments: Any) -> int:
    for _ in range(2):
        function(*arguments)
    events: list[str] = []
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return events.count("call")
