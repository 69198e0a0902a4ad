"""Every rotary module of diffusers, and every class that rotates: equal, or left with a reason."""

import importlib
import inspect
import pkgutil
import re
import sys
from functools import cache

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers
import torch
from diffusers.models.embeddings import apply_rotary_emb
from support.patched import refuse
from torch.utils._pytree import tree_leaves

from rope_xp import RopeError
from rope_xp.integrations import _methods
from rope_xp.integrations._classes import is_patched
from rope_xp.integrations._diffusion import grids, models, patching, rotations
from rope_xp.integrations._diffusion.rotary_modules import ROTARY_MODULES
from rope_xp.integrations._diffusion.rotations import ROTATIONS
from rope_xp.integrations.diffusers import from_config, patch

OWN = 1e-5  # of what a module makes itself: angles of float32, of positions below 100

# --- models of each class, as their configuration builds them ------------------------------------

HIDREAM = {"out_channels": 4, "patch_size": 2, "caption_channels": [8, 8], "llama_layers": [0, 0]}
# What a configuration needs beyond the defaults of its class.
MENDED = {
    "EasyAnimateTransformer3DModel": {"in_channels": 4, "out_channels": 4, "patch_size": 2},
    "HiDreamImageTransformer2DModel": {**HIDREAM, "axes_dims_rope": (64, 32, 32)},
    "WanVACETransformer3DModel": {"vace_layers": [0]},
}
LAYERS = ("num_layers", "num_single_layers", "n_layers", "n_refiner_layers", "num_refiner_layers")
# Models that patch refuses, though from_config reads their configuration.
REFUSED = {
    **dict.fromkeys(("AnyFlowTransformer3DModel", "AnyFlowFARTransformer3DModel"), "not know"),
    **dict.fromkeys(("JoyImageEditPlusTransformer3DModel", "StableAudio3DiTModel"), "not know"),
    "AceStepTransformer1DModel": "the module that computes its tables is unknown",
    "Ideogram4Transformer2DModel": "found no function that rotates",
}


# What a RoPE of diffusers and its positions may depend on.
KEYS = """
    axes_dim axes_dim_rope axes_dims axes_dims_rope attention_head_dim dit_dim embed_dim head_dim
    mrope_section rope_axes_dim rope_dim rope_dim_list rope_freq_dim rope_scale rope_theta
    rotary_dim theta
"""


def read_defaults(name):
    parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
    defaults = {key: parameters[key].default for key in KEYS.split() if key in parameters}
    return {k: v for k, v in (defaults | MENDED.get(name, {})).items() if v is not None}


def change(value):
    if isinstance(value, int | float):
        return 3 * value
    first, *others, last = value
    return [first + 8, *others, last - 8] if isinstance(first, int) else value[::-1]


def on_cpu(function):
    def run(*arguments, **named):
        with torch.device("cpu"):
            return function(*arguments, **named)

    return run


def build(name, config, monkeypatch):
    """Return a model of few layers, of which the rotary modules alone have memory."""
    kind = getattr(diffusers, name)
    for member in list(vars(sys.modules[kind.__module__]).values()):
        if getattr(member, "__name__", "") in ROTARY_MODULES:
            monkeypatch.setattr(member, "__init__", on_cpu(member.__init__))
    layers = dict.fromkeys(set(LAYERS) & inspect.signature(kind.__init__).parameters.keys(), 1)
    with torch.device("meta"):
        return kind(**layers | MENDED.get(name, {}) | config)


def list_calls(model):
    """Return the rotary modules of a model: each with a method and small arguments."""
    config = from_config(model)
    parts = [part for _, part in patching._iterate_parts(model)]
    rows = [(part, ROTARY_MODULES.get(type(part).__name__)) for part in parts]
    return [(part, row.method, row.arguments(part, config)) for part, row in rows if row]


@pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated")  # but Chroma imports it
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in sorted(models.MODELS)),
        ("QwenImageTransformer2DModel", {"use_layer3d_rope": True}),
    ],
)
def test_patched_tables_are_those_of_the_module(name, more, monkeypatch):
    changed = {k: change(v) for k, v in read_defaults(name).items() if k in KEYS.split()}
    if "axes_dims_rope" in changed:  # whose sum some compare with it
        changed.pop("attention_head_dim", None)
    model = build(name, changed | more, monkeypatch)
    calls = list_calls(model)
    theirs = tree_leaves([getattr(part, method)(*given) for part, method, given in calls])
    if name in REFUSED:
        refuse(patch, model, f"cannot patch {name}.*{REFUSED[name]}")
        return
    patch(model)
    ours = tree_leaves([getattr(part, method)(*given) for part, method, given in calls])
    for our_table, their_table in zip(ours, theirs, strict=True):
        assert our_table.dtype in (torch.float32, torch.complex64)
        exact = their_table.to(our_table.dtype)
        torch.testing.assert_close(our_table, exact, rtol=0, atol=OWN)


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_from_config_has_the_defaults_of_the_class(name):
    rope, positions = from_config({"_class_name": name, **MENDED.get(name, {})})
    assert rope == from_config({"_class_name": name, **read_defaults(name)}).rope
    row = models.MODELS[name]
    text, height = 0 if row.text is None else 3, 1 if row.lines is grids.sound else 4
    assert positions(height, 6, text=text).shape[-1] == 6 * height + text


@pytest.mark.parametrize("name", ["Wan3", "ChronoEdit3", "EasyAnimate3", "CogView4", "GlmImage"])
def test_from_config_counts_positions_of_a_grid_as_the_module(name, monkeypatch):
    axes = 3 if name.endswith("3") else 2
    model = build(f"{name.removesuffix('3')}Transformer{axes}DModel", {}, monkeypatch)
    rope, positions = from_config(model)
    ((module, _, (latents,)),) = list_calls(model)  # of 4 rows and 5 columns
    cos_sin = rope.cos_sin(positions(4, 5, frames=axes - 1), rope.rotary_dim)
    theirs = module(latents[:, :, :2] if axes == 3 else latents)
    pairs = slice(rope.rotary_dim // 2) if rope.layout == "half" else slice(None, None, 2)
    for our_table, their_table in zip(cos_sin, theirs, strict=True):
        flat = their_table.reshape(-1, rope.rotary_dim)[:, pairs]
        np.testing.assert_allclose(our_table, flat, rtol=0, atol=OWN)


# --- the rest of what patch does, for models of each kind ----------------------------------------


@pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated")
@pytest.mark.parametrize("name", ["Flux", "Flux2", "Chroma", "QwenImage", "ZImage"])
def test_patch_fuses_norms_of_the_blocks_that_rotate_right_after_them(name, monkeypatch):
    model = patch(build(f"{name}Transformer2DModel", {}, monkeypatch), norm=True)
    fused = {path for path, m in model.named_modules() if "norm" in path and is_patched(m)}
    assert fused
    assert all(path.startswith("single_") for path in fused) == ("mage" not in name)


@pytest.mark.parametrize(
    ("name", "message", "options"),
    [
        ("WanTransformer3DModel", "norm_q .* norm spans heads", {"norm": True}),
        ("CogVideoXTransformer3DModel", "cannot fuse a norm of", {"norm": True}),
        ("MochiTransformer3DModel", "MochiTransformer3DModel.*learned", {}),
        ("SD3Transformer2DModel", "SD3Transformer2DModel.*is unknown or does not rotate", {}),
    ],
)
def test_patch_refuses_models_and_norms_by_name(name, message, options, monkeypatch):
    refuse(patch, build(name, {}, monkeypatch), message, **options)


@pytest.mark.parametrize("name", models.OWN_TABLES)
def test_patch_takes_models_that_keep_their_own_tables(name, monkeypatch):
    model = patch(build(name, {}, monkeypatch))
    assert any(is_patched(part) for _, part in patching._iterate_parts(model))


def test_patch_takes_frequencies_that_were_cast_to_bfloat16(monkeypatch):
    model, ids = build("MiniMaxH3Transformer3DModel", {}, monkeypatch), torch.arange(12).view(4, 3)
    exact = model.rope(ids)
    assert not torch.equal(model.bfloat16().rope(ids)[1], exact[1])
    for ours, theirs in zip(patch(model).rope(ids), exact, strict=True):
        assert (ours - theirs).abs().max() < 2e-6


# --- the code of diffusers -----------------------------------------------------------------------

EMBEDDING = re.compile(r"\w*(Rotary|Rope|RoPE)\w*|\w*EmbedND\d?|\w+[a-z\d]PosEmbed")
LEFT = """
    AnimaRotaryEmbedding AnyFlowCausalRotaryPosEmbed AnyFlowRotaryPosEmbed BriaPosEmbed
    Cosmos3VLTextRotaryEmbedding ErnieImageEmbedND3 Ideogram4MRoPE Kandinsky6RoPE1D
    LTX2AudioVideoRotaryPosEmbed LTX2VideoVaeRotaryPosEmbed3D LTXVideoRotaryPosEmbed
    MiniMaxH3VideoRotaryPosEmbed MochiRoPE OmniGenSuScaledRotaryEmbedding QwenImage21Rope
    RotaryEmbedding SanaWMLTX2AudioVideoRotaryPosEmbed SanaWMRotaryPosEmbed
    StableAudio3RotaryEmbedding
"""
"""Rotary modules of models that patch refuses or diffusers lacks, or that keep their own tables."""
ROTATING = """
    AnimaTextConditionerAttnProcessor AnyFlowAttnProcessor AnyFlowCausalAttnProcessor
    BriaFibo2AttnProcessor ErnieImageSingleStreamAttnProcessor JoyImageEditPlusAttnProcessor
    MochiAttnProcessor2_0 SAMEAttnProcessor StableAudio3SelfAttnProcessor WanAnimate2AttnProcessor
"""
"""Classes of those models that rotate by functions of their own."""


@cache
def list_classes():
    names = ["diffusers.models.attention_processor", "diffusers.models.embeddings"]
    for part in ("transformers", "autoencoders", "condition_embedders", "controlnets"):
        package = importlib.import_module(f"diffusers.models.{part}")
        names += [f"{package.__name__}.{x.name}" for x in pkgutil.iter_modules(package.__path__)]
    members = [(name, x) for name in names for x in vars(importlib.import_module(name)).values()]
    return [x for name, x in members if inspect.isclass(x) and x.__module__ == name]


def test_rotary_modules_of_diffusers_are_all_replaced_or_listed():
    names = {kind.__name__ for kind in list_classes() if EMBEDDING.fullmatch(kind.__name__)}
    assert names == ROTARY_MODULES.keys() | LEFT.split()
    assert not ROTARY_MODULES.keys() & LEFT.split()


def test_classes_that_rotate_are_all_replaced_or_listed():
    calls = {kind.__name__: _methods.functions_called(kind) for kind in list_classes()}
    keys = {name: {rotations.find_key(*call) for call in calls[name]} for name in calls}
    assert {name for name in keys if not keys[name] <= ROTATIONS.keys()} == set(ROTATING.split())
    assert ROTATIONS.keys() <= set().union(*keys.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replaced_rotations_are_those_of_the_functions(dtype):
    calls = {call for kind in list_classes() for call in _methods.functions_called(kind)}
    for name, function in calls:
        rows = ROTATIONS.get(rotations.find_key(name, function), ())
        for row in rows:
            arrays, tables = rotations.make_example(row)
            narrow = [x.to(dtype) for x in arrays]
            exact = rotations.rotate_arrays([x.double() for x in narrow], tables, row)
            ours = rotations.rotate_like(rows, function, *narrow, *tables, **row.options)
            theirs = function(*narrow, *tables, **row.options)
            for y, their_y, true in zip(*map(tree_leaves, (ours, theirs)), exact, strict=True):
                assert (y.shape, y.dtype) == (narrow[0].shape, dtype)
                unit = torch.finfo(dtype).eps * true.abs().max()
                error = (y.double() - true).abs().max()
                assert error <= max(unit, (their_y.double() - true).abs().max())
                assert (y - narrow[0]).abs().max() > 0.5  # it does rotate


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
