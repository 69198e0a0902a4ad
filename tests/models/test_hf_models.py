"""The table of model types against the classes and the code of transformers."""

import inspect
from pathlib import Path

import pytest

from rope_xp import from_hf_config
from rope_xp.hf import _keys, _plan
from rope_xp.hf._models import MODELS

modeling = pytest.importorskip("transformers.models.auto.modeling_auto")


def find_class(name):
    return _plan.find_class({"model_type": name})


def read_code(name):
    """Return the code of a model type, which may be another's."""
    kind = find_class(name)
    files = [*Path(inspect.getfile(kind)).parent.glob("modeling_*.py")]
    files = files or [Path(inspect.getfile(modeling.MODEL_MAPPING[kind]))]
    return "".join(path.read_text("utf-8") for path in files)


ROWS = {name: row for name, row in MODELS.items() if find_class(name)}


def test_default_sizes_are_those_of_transformers():
    sizes = {name: row.sizes for name, row in MODELS.items() if row.sizes}
    assert len(sizes) > 30
    for name, expected in sizes.items():
        defaults = find_class(name)().to_dict()
        found = {key: _keys.find_value(defaults, key) for key in expected}
        assert found == expected, name


@pytest.mark.parametrize("name", [n for n, m in ROWS.items() if m.layout == "interleaved_to_half"])
def test_from_hf_config_reads_rope_interleave_where_the_code_of_transformers_does(name):
    reads = "config.rope_interleave" in read_code(name)
    config = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "rope_interleave": False}
    ropes = from_hf_config({"model_type": name, **config})
    ropes = [*ropes.values()] if isinstance(ropes, dict) else [ropes]
    assert {rope.layout for rope in ropes} == {"half" if reads else "interleaved_to_half"}


def test_from_hf_config_reads_shares_where_the_code_of_transformers_does():
    words = ("partial_rotary_factor", "rotary_dim", "rotary_ndims")
    reads = {name: any(word in read_code(name) for word in words) for name in ROWS}
    assert len(reads) > 100
    assert reads == {name: row.reads_share for name, row in ROWS.items()}
