"""Every rotary module of diffusers, and every method that rotates: equal, or left with a reason."""

import inspect
import re
import subprocess
import sys
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch
from diffusers.models.embeddings import apply_rotary_emb
from support import diffusers_census as census
from support.diffusers_census import BY_HAND
from torch.utils._pytree import tree_leaves

from rope_xp import RopeConfigError, RopeError
from rope_xp.integrations import _methods
from rope_xp.integrations._diffusion import grids, models, rotations
from rope_xp.integrations._diffusion.rotary_modules import ROTARY_MODULES
from rope_xp.integrations._diffusion.rotations import ROTATIONS
from rope_xp.integrations.diffusers import from_config

# Of what cos and sin are, by mpmath: as all tables of float32.
TABLES = 1e-6
# Of what a module makes itself: angles of float32, of positions below 100.
OWN = 1e-5
# They are given latents, and count their patches.
COUNTING = [
    name
    for name in census.SMALL
    if re.search("Wan|SkyReels|Chrono|HunyuanVideo[R1]|HunyuanI|Motif|Cosmos|View4|Glm|Easy", name)
]


@cache
def small(name):
    fields, config = census.SMALL[name]
    return census.embeddings()[name](**fields), from_config(config)


def test_rotary_modules_of_diffusers_are_all_listed():
    assert sorted([*census.SMALL, *census.NO_PAIRS, *BY_HAND]) == sorted(census.embeddings())
    assert len(census.SMALL) / len({*census.SMALL, *BY_HAND}) > 0.72


@pytest.mark.parametrize("name", census.SMALL)
def test_patched_tables_are_those_of_the_module(name):
    module, config = small(name)
    row = ROTARY_MODULES[type(module).__name__]
    arguments = row.arguments(module, config)
    theirs = tree_leaves(getattr(module, row.method)(*arguments))
    ours = tree_leaves(row.compute(config, module, *arguments))
    for our_table, their_table in zip(ours, theirs, strict=True):
        assert our_table.shape == their_table.shape
        assert torch.allclose(our_table, their_table.to(our_table.dtype), rtol=0, atol=OWN)
        assert our_table.dtype in (torch.float32, torch.complex64)


@pytest.mark.parametrize("name", BY_HAND)
def test_tables_of_modules_that_are_left_are_those_of_a_rope(name):
    hand = BY_HAND[name]
    module = census.embeddings()[name](**hand.fields)
    theirs = [np.asarray(table) for table in hand.theirs(module)]
    pairs = theirs[0].shape[-1]
    at = np.asarray(hand.positions, np.float64)
    frequencies = hand.rope.frequencies(2 * pairs)
    axes = hand.rope.position_axes
    angles = (at[list(axes)].T if axes else at[:, None]) * frequencies
    exact = [hand.rope.attention_factor * compute(angles) for compute in (np.cos, np.sin)]
    # Those of LTX turn by up to 15,708: as exact as this in float64 alone.
    dtype = np.float64 if frequencies.max() > 1 else np.float32
    ours = hand.rope.cos_sin(at, 2 * pairs, dtype=dtype)
    for our_table, their_table, true in zip(ours, theirs, exact, strict=True):
        np.testing.assert_allclose(our_table, true, rtol=0, atol=TABLES)
        np.testing.assert_allclose(our_table, their_table, rtol=0, atol=hand.bound)


def test_methods_that_rotate_are_all_replaced_or_listed():
    classes = census.methods()
    left = {census.NO_ROTATION, *(f"{name}.__call__" for name in census.LEFT_METHODS)}
    assert left <= set(classes)
    keys = {
        name: {rotations.find_key(*call) for call in _methods.functions_called(kind)}
        for name, kind in classes.items()
    }
    replaced = {name for name in classes if keys[name] and keys[name] <= ROTATIONS.keys()}
    assert replaced == set(classes) - left
    assert set(ROTATIONS) == set().union(*(keys[name] for name in replaced))


@cache
def _functions():
    return {
        f"{function.__module__}.{key}": function
        for kind in census.methods().values()
        for name, function in _methods.functions_called(kind)
        if (key := rotations.find_key(name, function)) in ROTATIONS
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replaced_rotations_are_those_of_the_functions(dtype):
    assert _functions()
    for function in _functions().values():
        check_replaced(function, dtype)


def check_replaced(function, dtype):
    rows = ROTATIONS[rotations.find_key(function.__name__, function)]
    for row in rows:
        arrays, tables = rotations.make_example(row)
        narrow = [x.to(dtype) for x in arrays]
        exact = rotations.rotate_arrays([x.double() for x in narrow], tables, row)
        ours = rotations.rotate_like(rows, function, *narrow, *tables, **row.options)
        theirs = function(*narrow, *tables, **row.options)
        both = tree_leaves(ours), tree_leaves(theirs)
        for our_table, their_table, true in zip(*both, exact, strict=True):
            assert (our_table.shape, our_table.dtype) == (narrow[0].shape, dtype)
            unit = torch.finfo(dtype).eps * true.abs().max()
            error = (our_table.double() - true).abs().max()
            assert error <= max(unit, (their_table.double() - true).abs().max())
            assert (our_table - narrow[0]).abs().max() > 0.5  # it does rotate


def test_replaced_rotation_with_unusual_arguments_calls_the_function():
    rows = ROTATIONS["embeddings.apply_rotary_emb"]
    (x,), (tables,) = rotations.make_example(rows[0])
    for arguments, options in (
        ((x, tables, True, -1), {}),  # by position
        ((x,), {"freqs_cis": tables}),  # tables by name
    ):
        rotated = rotations.rotate_like(rows, apply_rotary_emb, *arguments, **options)
        assert torch.equal(rotated, apply_rotary_emb(*arguments, **options))
    with pytest.raises(ValueError, match="sequence_dim=3"):  # the function's own words
        rotations.rotate_like(rows, apply_rotary_emb, x, tables, sequence_dim=3)
    short = tuple(table[..., :4] for table in tables)
    with pytest.raises(RopeError, match="tables of 2 pairs do not fit head_dim 8"):
        rotations.rotate_like(rows, apply_rotary_emb, x, short)


class Recording(dict[str, Any]):
    def __init__(self):
        self.read = set()

    def get(self, key, default=None):
        self.read.add(key)
        return default


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_from_config_reads_keys_that_the_class_has(name):
    import diffusers

    model, kind = models.MODELS[name], getattr(diffusers, name)
    rotary, positions = from_config({"_class_name": name})
    text = 0 if model.text is None else 3
    at = positions(1 if model.lines is grids.sound else 4, 6, text=text)
    tokens = 6 if model.lines is grids.sound else 24 + text
    assert at.shape[-1] == tokens
    assert rotary.cos_sin(at, rotary.rotary_dim)[0].shape == (tokens, rotary.rotary_dim // 2)
    config = Recording()
    model.sections(config)
    model.lines(grids.Grid(1, 1, 1), config)
    for read in (model.bases and partial(model.bases, sections=(4, 6, 6)), model.position_axes):
        if read is not None:
            read(config)
    config.read.discard("patch_size_t" if name.startswith("ConsisID") else "")  # of CogVideoX
    keys = {*config.read, *filter(None, [model.base_key])}
    assert keys <= set(inspect.signature(kind.__init__).parameters)


@pytest.mark.parametrize("name", COUNTING)
def test_from_config_counts_positions_of_a_grid_as_the_module(name):
    module, (rope, positions) = small(name)
    row = ROTARY_MODULES[type(module).__name__]
    (latents,) = row.arguments(module, small(name)[1])
    patches = module.patch_size
    if isinstance(patches, int):
        patches = (getattr(module, "patch_size_t", 1), patches, patches)[-(latents.ndim - 2) :]
    *frames, height, width = (n // m for n, m in zip(latents.shape[2:], patches, strict=True))
    at = positions(height, width, **({"frames": frames[0]} if frames else {}))
    cos, sin = rope.cos_sin(at, rope.rotary_dim)
    pairs = slice(cos.shape[-1]) if rope.layout == "half" else slice(None, None, 2)
    for our_table, their_table in zip((cos, sin), module(latents), strict=True):
        flat = their_table.reshape(-1, their_table.shape[-1])[:, pairs]
        np.testing.assert_allclose(our_table, flat, rtol=0, atol=OWN)


WRONG = (
    ("_class_name is missing", {}),
    ("is unknown or does not rotate", {"_class_name": "UNet2DModel"}),
    ("must be even", {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [3, 5]}),
    ("not iterable", {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": 3}),
    ("must be positive", {"_class_name": "Flux2Transformer2DModel", "rope_theta": -1}),
    *((re.escape(why), {"_class_name": name}) for name, why in models.UNSUPPORTED.items()),
)


@pytest.mark.parametrize(("message", "config"), WRONG)
def test_from_config_refuses_wrong_configurations(message, config):
    with pytest.raises(RopeConfigError, match=message):
        from_config(config)


def test_from_config_refuses_wrong_grids():
    wan, sound, cogvideox = (
        from_config({"_class_name": f"{name}Model"}).positions
        for name in ("WanTransformer3D", "AceStepTransformer1D", "CogVideoXTransformer3D")
    )
    for message, call in (
        ("does not rotate its text", lambda: wan(2, 2, text=1)),
        ("height must be positive", lambda: wan(0, 2)),
        ("height must be positive", lambda: cogvideox(0, 2)),
        ("text must not be negative; got -1", lambda: wan(2, 2, text=-1)),
        ("one axis, width", lambda: sound(2, 2)),
        ("width must be positive", lambda: sound(1, 0)),
        ("needs xp", lambda: wan(2, 2, device="cpu")),
    ):
        with pytest.raises(RopeError, match=message):
            call()
    assert wan(2, 2, xp=torch).dtype == torch.int64


def test_from_config_and_pickle_import_no_torch():
    program = (
        "import pickle\n"
        "from rope_xp.integrations.diffusers import from_config\n"
        "config = from_config({'_class_name': 'WanTransformer3DModel'})\n"
        "rope, positions = pickle.loads(pickle.dumps(config))\n"
        "import sys; assert not {'torch', 'diffusers', 'jax'} & set(sys.modules)\n"
        "print(rope.rotary_dim, positions(2, 3, frames=4).shape)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "128 (3, 24)\n"
