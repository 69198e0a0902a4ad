"""The public names and signatures, which other programs are written against, and their import."""

import copy
import importlib.metadata
import inspect
import operator
import pickle
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from support.cases import slow
from support.programs import run

import rope_xp
from rope_xp import RoPE
from rope_xp._core import versions
from rope_xp._dispatch.libraries import LIBRARIES

SIGNATURES = {
    "apply": "q, k, positions=None, rope=None, *, axes=None, k_positions=None, out=None, "
    "slots=None, cache_axes=None, norm=None, **options",
    "apply_angles": "q, k, angles, *, layout='interleaved', axes=None, k_angles=None, "
    "rotary_offset=0, norm=None, out=None",
    "apply_frequencies": "q, k, positions, frequencies, *, layout, axes=None, out=None",
    "apply_tables": "x, cos, sin, *, layout='interleaved', inverse=False, axes=None, "
    "rotary_offset=0, out=None",
    "clear_caches": "",
    "cumulative_angles": "steps, axis, *, start=None, cu_seqlens=None, return_state=False",
    "explain": "q, k, positions=None, rope=None, *, axes=None, k_positions=None, out=None, "
    "norm=None, **options",
    "permute_weights": "w, num_heads, *, to",
    "use_path": "name",
    "RoPE": "*, base=10000.0, layout='interleaved', rotary_dim=None, rotary_offset=0, "
    "scaling=None, position_axes=None",
    "RoPE.apply": "self, q, k, positions=None, *, axes=None, k_positions=None, out=None, "
    "slots=None, cache_axes=None, norm=None",
    "RoPE.rotate": "self, x, positions=None, *, axes=None, out=None, norm=None",
    "RoPE.unrotate": "self, x, positions=None, *, axes=None, out=None",
    "RoPE.rerotate": "self, x, old_positions, new_positions, *, to=None, slots=None, axes=None, "
    "out=None",
    "RoPE.frequencies": "self, head_dim",
    "RoPE.wavelengths": "self, head_dim",
    "RoPE.cos_sin": "self, positions, head_dim, *, xp=None, device=None, dtype=None",
    "RoPE.at": "self, positions, *, like, head_dim=None",
    "RoPE.with_tables": "self, cos, sin",
    "RoPE.for_length": "self, n",
    "RoPE.table": "self, length, head_dim, *, form, xp=None, device=None, dtype=None",
    "RoPE.axial": "sections, *, bases=None, order='blocks', **fields",
    "Angles": "cos, sin, rope, inverse=None",
    "QKNorm": "q_weight=None, k_weight=None, eps=1e-06, offset=0.0, round_between=False",
    "Choice": "ropes, which",
    "Choice.at": "self, positions, *, like, head_dim=None",
    "Angles.apply": "self, q, k, *, axes=None, out=None, slots=None, cache_axes=None, norm=None",
    "Angles.rotate": "self, x, *, axes=None, out=None, norm=None",
    "Angles.unrotate": "self, x, *, axes=None, out=None",
    "from_hf_config": "config, *, layout=None",
    "plan": "config, *, layout=None",
    "to_hf_config": "rope, config",
    "scaling.inverse_frequencies": "base, rotary_dim",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_agreed(name):
    parameters = inspect.signature(operator.attrgetter(name)(rope_xp)).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert str(inspect.Signature(bare))[1:-1] == SIGNATURES[name]


NAMES = """
Angles Choice Explanation LayerPlan MissingBackendError QKNorm RoPE RopeConfigError RopeError apply
apply_angles apply_frequencies apply_tables clear_caches cumulative_angles explain from_hf_config
permute_weights plan scaling to_hf_config use_path
"""
MODULES = "angles backend choice hf integrations layers norm onnx papers positions rope testing"
MEMBERS = """
apply rotate unrotate rerotate frequencies wavelengths cos_sin attention_factor softmax_scale
for_length at with_tables table axial
"""


def test_public_names_are_those_agreed():
    assert rope_xp.__all__ == NAMES.split() == sorted(rope_xp.__all__)
    public = {name for name in vars(rope_xp) if not name.startswith("_")}
    assert public - set(rope_xp.__all__) <= set(MODULES.split())
    members = {name for name in dir(RoPE) if not name.startswith("_")}
    assert members == {field.name for field in fields(RoPE)} | set(MEMBERS.split())


def test_the_version_is_that_of_the_package():
    assert rope_xp.__version__ == importlib.metadata.version("rope-xp")


def test_a_rope_can_be_compared_hashed_copied_and_pickled():
    part, linear = {"rotary_dim": 64, "rotary_offset": -64}, rope_xp.scaling.Linear(2.0)
    rope = RoPE(base=5e5, layout="half", scaling=linear, position_axes=(0, 1) * 16, **part)
    assert rope != replace(rope, base=1e4)
    for copied in (replace(rope), pickle.loads(pickle.dumps(rope)), copy.deepcopy(rope)):
        assert copied == rope
        assert hash(copied) == hash(rope)
    with pytest.raises(FrozenInstanceError):
        rope.base = 1.0
    assert RoPE() == RoPE(base=10000)
    assert eval(repr(rope), {"RoPE": RoPE, "Linear": rope_xp.scaling.Linear}) == rope


def test_extras_have_the_lower_bounds_that_are_checked():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {library.extra for library in LIBRARIES if library.extra} <= set(extras)
    of_users = [d for needs in extras.values() for d in needs if "[" not in d]
    lowest = dict(d.split(">=") for d in of_users)
    shared = set(lowest) & set(versions.LOWEST)
    assert shared >= {"torch", "jax", "transformers"}
    assert all(lowest[name] == versions.LOWEST[name] for name in shared)


# --- imports, in processes of their own ----------------------------------------------------------

HEAVY = "importlib_metadata email zipfile asyncio argparse json unittest array_api_compat"
FRAMEWORKS = "torch jax cupy numba triton dask matplotlib onnx flax equinox keras torch._dynamo"


def python(code: str, *flags: str) -> list[str]:
    return run("-W", "error", *flags, "-c", code).splitlines()


@pytest.mark.parametrize(("library", "flags"), [("numpy", ("-OO",)), slow("torch", ())])
def test_import_and_calls_bring_no_library_but_that_of_their_arrays(library, flags):
    """import takes 50 ms beyond numpy at most, which asv_benchmarks/imports.py times."""
    pytest.importorskip(library)
    lines = python(
        f"import sys, {library} as xp; before = set(sys.modules); import rope_xp\n"
        "new = lambda names: [m for m in names.split() if m in set(sys.modules) - before]\n"
        f"print(new({HEAVY!r})); q = xp.ones((1, 2, 3, 4), dtype=xp.float32)\n"
        "rope_xp.explain(q, q); rope_xp.RoPE().frequencies(4)\n"
        f"print(type(rope_xp.apply(q, q, [5, 6])[0]) is type(q), new({FRAMEWORKS!r}))",
        *flags,
    )
    assert lines == ["[]", "True []"]


@pytest.mark.slow  # torch.compile takes seconds
def test_a_compiled_function_may_meet_the_first_array_of_numpy():
    pytest.importorskip("torch")
    lines = python(
        "import numpy as np, torch, rope_xp\n"
        "def f(q, p):\n"
        "    rope = rope_xp.RoPE(scaling=rope_xp.scaling.DynamicNTK(2.0, 64)).for_length(100)\n"
        "    return rope.rotate(q, p), rope.at(p, like=q).rotate(q)\n"
        "compiled = torch.compile(f, backend='aot_eager', fullgraph=True)\n"
        "q, p = torch.ones(5, 2, 8), np.arange(5)\n"
        "print(*[torch.equal(a, b) for a, b in zip(compiled(q, p), f(q, p))])",
    )
    assert lines == ["True True"]


def test_public_modules_load_on_first_use() -> None:
    modules = ("backend", "integrations", "layers", "papers", "positions", "testing")
    lines = python(
        f"import rope_xp, sys; names = {modules}\n"
        "before = [f'rope_xp.{name}' in sys.modules for name in names]\n"
        "print(any(before), {*names, 'onnx', 'apply'} <= {*dir(rope_xp)})\n"
        "print(*[getattr(rope_xp, name).__name__ for name in names])\n"
        "print(rope_xp.papers.analysis.__name__, hasattr(rope_xp, 'no_such_module'))"
    )
    names = " ".join(f"rope_xp.{name}" for name in modules)
    assert lines == ["False True", names, "rope_xp.papers.analysis False"]
