"""No false alarm: what the models of transformers call is known, and has no fault."""

import inspect
import re

import pytest
import torch
from support import census  # first, as it skips this module where torch or transformers is missing
from support.exhaustive import exhaustive

from rope_xp.scaling import Axial
from rope_xp.testing import identify
from rope_xp.testing._compare import list_differences

SHORT = ("deepseek_v3", "qwen3_vl", "pixtral")


def identify_unit(unit, module, label, rope):
    more = {"layer_type": label} if label else {}
    rotate = census.find_function(unit)
    first = next(iter(inspect.signature(rotate).parameters))
    buffer = census._buffers(module).get(label, torch.empty(0))

    def tables(positions):
        return module(torch.zeros(1), positions, **more)

    components = 1 if rope.position_axes is None else max(rope.position_axes) + 1
    few = torch.arange(5).expand(components, 1, 5) if components > 1 else torch.arange(5)[None]
    if isinstance(rope.scaling, Axial):
        few = few[:, 0].T
    made = tables(few)
    cos = made[0] if isinstance(made, tuple) else made
    head_dim = census._head_dim(unit, buffer, cos, rotate)
    axes = "bshd" if unit.directory in ("llama4", "efficientloftr") else "bhsd"
    flat = cos.ndim == 2 and bool(re.search(r"unsqueeze|None, :", inspect.getsource(rotate)))

    def one(x, given):
        if flat:  # of all images, without a batch
            return torch.stack([rotate(each, each, *given)[0] for each in x])
        if first in ("x", "tensor"):
            return rotate(x, *given)
        if axes == "bshd" and isinstance(given, tuple):
            return rotate(x, x, *given, unsqueeze_dim=2)[1]
        return rotate(x, x, *(given if isinstance(given, tuple) else (given,)))[1]

    options = {"components": components, "heads": 3, "like": torch.zeros(1)}
    axes = "bshd" if flat else axes
    return identify(lambda x, p: one(x, tables(p)), head_dim, axes=axes, **options), head_dim


def list_problems(unit):
    module = unit.rotary(unit.config).eval()
    ropes = census.read_ropes(unit)
    problems = []
    for label in census._buffers(module) or {"": None}:
        rope = census.select_rope(ropes, label).for_length(1)
        found, head_dim = identify_unit(unit, module, label, rope)
        differences = list_differences(found.rope, rope, head_dim)
        problems += [f"{label} {text}" for text in (*found.faults, *differences)]
    return problems


def takes_positions(unit):
    module = unit.rotary(unit.config)
    wanted = list(inspect.signature(type(module).forward).parameters)
    return not (hasattr(module, "freqs_ci") or "pixel_values" in wanted or wanted == ["self", "x"])


TESTED = set()
"""Code that another model had too: most of transformers is copies."""


@pytest.mark.parametrize(
    "directory", [d if d in SHORT else exhaustive(d) for d in census.list_directories()]
)
def test_models_of_transformers_have_no_fault(directory):
    for unit in census.list_units(directory):
        left_out = {*census.LEFT, *census.LEARNED, *census.NOT_CALLED}
        if unit.name in left_out or not takes_positions(unit):
            continue
        sources = (inspect.getsource(f) for f in (census.find_function(unit), unit.rotary.forward))
        ropes = census.read_ropes(unit)
        found = ropes.values() if isinstance(ropes, dict) else [ropes]
        kinds = {(rope.layout, type(rope.scaling).__name__) for rope in found if rope is not None}
        code = (*sources, str(sorted(kinds)))
        if code not in TESTED:
            assert list_problems(unit) == [], unit.name
        TESTED.add(code)
