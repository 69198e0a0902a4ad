"""Compare ``from_hf_config`` with every model of the installed transformers.

    python tests/support/census.py            # a table of what is not equal, and the counts

For each configuration class whose rotary module can be built from its defaults, the frequencies and
the attention factor are compared with the module's own, and the rotation with the function that the
model's attention calls. ``tests/models/test_census.py`` runs the same.
"""

import ast
import importlib
import inspect
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 48
HEADS = 3
ROTARY = re.compile(r"class (\w*(?:Rotary|RopePosition)\w*Embedding)\(")
UNREADABLE = ("higgs_audio_v2_tokenizer",)  # imports torchaudio
MODELS = Path(transformers.__file__).parent / "models"

# transformers computes powers, quotients and products in float32: a few units of 6e-8.
FREQUENCIES = 2e-6
# Its angles are float32 products below 48, good to 48 * 6e-8, and |x| below 5.
ROTATION = 5e-5


# Defaults that describe no rotation, and what makes one of them.
MENDED = {
    "Glm4vTextConfig": {"head_dim": 64},  # mrope_section is for 32 pairs
    "Glm4vMoeTextConfig": {"head_dim": 128},  # hidden_size / num_attention_heads is odd
    "GlmImageTextConfig": {"head_dim": 64},  # as Glm4vTextConfig
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},  # as Glm4vMoeTextConfig
    "Qwen3OmniMoeTalkerTextConfig": {"head_dim": 128},  # mrope_section is for 64 pairs
    "EsmConfig": {"position_embedding_type": "rotary"},  # not rotary by default, as those below
    "GraniteMoeHybridConfig": {"position_embedding_type": "rope"},
    "SeamlessM4TConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2BertConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2ConformerConfig": {"position_embeddings_type": "rotary"},
    "Zamba2Config": {"use_mem_rope": True},
    "Qwen4ExpTextConfig": {"head_dim": 64},  # mrope_section is for 32 pairs
}

LEFT = {
    "ClvpRotaryPositionalEmbedding": "it rotates v as well",
    "EsmFold2RotaryEmbedding": "two bases, four components",
    "Gemma4VisionRotaryEmbedding": "it rotates two slices of a head",
    "MiniMaxM3VLRotaryEmbedding": "its code does not heed rotary_dim of its configuration",
    "MusicFlamingoRotaryEmbedding": "angles of two positions",
    "NanoChatRotaryEmbedding": "it turns by the negative angle",
}
"""Rotary modules that are not equal, and why."""

LEARNED = {
    "MistralLarge4TextRotaryEmbedding": lambda module: module.inv_freq * module.alpha.exp(),
}
"""Frequencies in weights, of which configurations say none: only the rotation is compared."""

NOT_CALLED = {
    "ClvpRotaryPositionalEmbedding": "its function takes v",
    "HunYuanVLRotaryEmbedding": "with mrope_section it is no rotation, and without it fails",
    "EsmFold2RotaryEmbedding": "it rotates in a method of its attention",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "as EsmFold2",
    "Wav2Vec2BertRotaryPositionalEmbedding": "as EsmFold2",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "as EsmFold2",
    "CodeGenRotaryEmbedding": "sines before cosines, of a slice of the head: test_census.py",
    "GPTJRotaryEmbedding": "as CodeGen",
}
"""Those that no function with (q, k, cos, sin) rotates by, and why."""


class Unit(NamedTuple):
    directory: str
    config: Any
    rotary: type
    module: ModuleType

    @property
    def name(self):
        return f"{self.directory}.{type(self.config).__name__}.{self.kind}"

    @property
    def kind(self):
        return self.rotary.__name__


def list_directories():
    files = MODELS.glob("*/modeling_*.py")
    names = {path.parent.name for path in files if ROTARY.search(path.read_text(encoding="utf-8"))}
    return sorted(names.difference(UNREADABLE))


def list_units(directory):
    for path in sorted((MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        text = path.read_text(encoding="utf-8")
        for name in dict.fromkeys(ROTARY.findall(text)):
            rotary = getattr(module, name)
            # Those that are imported beside it, if none of the models that call it has one.
            members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
            for classes in (_callers(ast.parse(text), module, rotary), members):
                configs = [config for kind in classes if (config := _build(rotary, kind))]
                if configs:
                    yield from (Unit(directory, config, rotary, module) for config in configs)
                    break


def _callers(tree, module, rotary):
    """Return the configuration classes of the classes that make a rotary module."""
    callers = {}
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
        if any(ast.unparse(call.func) == rotary.__name__ for call in calls):
            kind = getattr(module, node.name)
            names = [p.annotation for p in inspect.signature(kind).parameters.values()]
            kinds = [getattr(module, n, None) if isinstance(n, str) else n for n in names]
            own = next(filter(_is_config, kinds), getattr(kind, "config_class", None))
            callers[own] = True
    return callers


def _is_config(kind):
    plain = transformers.PretrainedConfig
    return inspect.isclass(kind) and issubclass(kind, plain) and kind is not plain


def _build(rotary, kind):
    """Return a configuration of a class by its defaults, if the module can be made from it."""
    if not _is_config(kind):
        return None
    config = kind(**MENDED.get(kind.__name__, {}))
    try:
        rotary(config)
    except (AttributeError, KeyError, ValueError, TypeError, RuntimeError):
        return None  # meant for another configuration, or its defaults are impossible
    return config


NAMELESS = ("SaProtConfig", "Qwen3OmniMoeCode2WavConfig")  # have no model_type


def read_ropes(unit):
    layout = "half" if type(unit.config).__name__ in NAMELESS else None
    return rope_xp.from_hf_config(unit.config.to_dict(), layout=layout)


def compare_frequencies(unit):
    module, ropes = unit.rotary(unit.config), read_ropes(unit)
    for label, buffer in list_buffers(module).items():
        rope, theirs = select_rope(ropes, label), buffer.double().numpy()
        ours = rope.for_length(1).frequencies(rope.rotary_dim or 2 * len(theirs))
        if rope.position_axes is not None:  # each component has the series, in its own order
            theirs, ours = np.unique(theirs.astype("f")), np.unique(ours.astype("f"))
        assert ours.shape == theirs.shape, (label, ours.shape, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=FREQUENCIES, atol=0, err_msg=label)
        factor = getattr(module, f"{label}_attention_scaling".lstrip("_"), 1.0)
        assert math.isclose(rope.attention_factor, factor, rel_tol=1e-6), (label, rope, factor)


def select_rope(ropes, label):
    """Return the RoPE of a layer type, or the only one where the module has no layer types."""
    if isinstance(ropes, RoPE):
        return ropes
    (rope,) = [ropes[label]] if label else [rope for rope in ropes.values() if rope is not None]
    assert rope is not None
    return rope


def list_buffers(module):
    return {  # by layer type
        name.removesuffix("inv_freq").removesuffix("_"): buffer
        for name, buffer in module.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }


def compare_rotation(unit):
    module, read_frequencies = unit.rotary(unit.config).eval(), LEARNED.get(unit.kind)
    for buffer in module.state_dict().values() if read_frequencies else ():
        buffer.copy_(torch.linspace(-0.3, 0.3, buffer.numel()).view(buffer.shape))  # not zeros
    ropes = RoPE() if read_frequencies else read_ropes(unit)
    for label, buffer in (list_buffers(module) or {"": torch.empty(0)}).items():
        rope = select_rope(ropes, label).for_length(TOKENS)
        generator = torch.Generator().manual_seed(0)
        positions, tables = _compute_tables(module, label, rope, generator)
        q, k, axes, theirs = _call_model(unit, buffer, tables, generator)
        if axes == "shd" and positions.ndim > 1:
            positions = positions[:, 0]
        if read_frequencies is None:
            rotated = rope.apply(q, k, positions, axes=axes)
        else:
            own, more = read_frequencies(module), {"layout": "interleaved_to_half", "axes": axes}
            rotated = rope_xp.apply_frequencies(q, k, positions, own, **more)
        for ours, expected in zip(rotated, theirs, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=ROTATION)


def _call_model(unit, buffer, tables, generator):
    """Return random q and k, their axes, and what the model's function makes of them."""
    apply = find_function(unit)
    cos = tables[0] if isinstance(tables, tuple) else tables
    axes = "bshd" if unit.directory in ("llama4", "efficientloftr") else "bhsd"
    if cos.ndim == 2 and re.search(r"unsqueeze|None, :", inspect.getsource(apply)):
        axes = "shd"
    sizes = {"b": 1, "h": HEADS, "s": cos.shape[-2], "d": _head_dim(unit, buffer, cos, apply)}
    q, k = (torch.randn([sizes[a] for a in axes], generator=generator) for _ in "qk")
    if next(iter(inspect.signature(apply).parameters)) in ("x", "tensor"):
        return q, k, axes, (apply(q, *tables), apply(k, *tables))
    if not isinstance(tables, tuple):  # but complex numbers
        return q, k, axes, apply(q, k, tables)
    return q, k, axes, apply(q, k, *tables, **({"unsqueeze_dim": 2} if axes == "bshd" else {}))


def _compute_tables(module, label, rope, generator):
    """Return positions, of (components, batch, tokens) or (batch, tokens), and the tables."""
    wanted = list(inspect.signature(type(module).forward).parameters)
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(5), indexing="ij")
    grid = torch.stack([rows.flatten(), columns.flatten()])[:, None]
    if hasattr(module, "freqs_ci"):  # of all patches and a token of no position, once and for all
        side = round((len(module.freqs_ci) - 1) ** 0.5)
        patches = torch.arange(side * side)
        positions = torch.zeros((2, 1, side * side + 1), dtype=torch.int64)
        positions[:, 0, :-1] = torch.stack([patches // side + 1, patches % side + 1])
        return positions, module.freqs_ci[:, 0]
    if "pixel_values" in wanted:
        size = module.config.patch_size
        tables = module(torch.zeros(1, 3, 6 * size, 5 * size))
        centres = 2 * (grid + 0.5) / torch.tensor([6, 5])[:, None, None] - 1
        return 2 * math.pi * centres, tables
    if wanted == ["self", "x"]:  # of every cell of a map that a convolution makes smaller
        step = module.config.q_aggregation_stride
        cos, sin = module(torch.zeros(1, 1, 6 * step, 5 * step))
        return grid + 1, (cos.flatten(1, 2), sin.flatten(1, 2))
    components = 1 if rope.position_axes is None else max(rope.position_axes) + 1
    positions = torch.randint(TOKENS, (components, 1, TOKENS), generator=generator)
    positions = positions[0] if components == 1 else positions
    axial = isinstance(rope.scaling, rope_xp.scaling.Axial)
    more = {"layer_type": label} if label else {}
    return positions, module(torch.zeros(1), positions[:, 0].T if axial else positions, **more)


NAMES = ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", "apply_rotary_emb")
VISION = (
    *("apply_rotary_pos_emb_vision", "vision_apply_rotary_emb", "apply_rotary_pos_emb_2d"),
    "apply_rotary_pos_emb_2d_self_attn",
)


def find_function(unit):
    names = VISION if re.search("Vision|ViT|MLCD", unit.rotary.__name__) else ()
    names += NAMES[1:] if "Audio" in unit.rotary.__name__ else NAMES
    name = next((name for name in names if hasattr(unit.module, name)), None)
    if name is None:
        raise LookupError(f"{unit.name} has no function that rotates")
    return getattr(unit.module, name)


def _head_dim(unit, buffer, cos, apply):
    """Return the components that the function takes: all of a head where it picks the slice."""
    once = cos.is_complex() or cos.shape[-1] == len(buffer)  # not twice, once for each of a pair
    rotated = cos.shape[-1] * (1 + once)
    head_dim = unit.config.to_dict().get("head_dim") or 0
    picks = re.search(r"rot(ary)?_dim|rope_dim", inspect.getsource(apply))
    return int(max(rotated, head_dim) if picks else rotated)


def compare_defaults(unit):
    """Compare with a file that leaves the defaults out."""
    whole = unit.config.to_dict()
    if type(unit.config).__name__ in NAMELESS:
        return
    keys = ("rope_parameters", "rope_theta", "partial_rotary_factor")
    ropes = rope_xp.from_hf_config({k: v for k, v in whole.items() if k not in keys})
    expected = rope_xp.from_hf_config(whole)
    if isinstance(expected, dict) and isinstance(ropes, dict):
        ropes = {label: ropes.get(label) for label in expected}
    assert ropes == expected, (ropes, expected)


CHECKS = {
    "frequencies": (compare_frequencies, LEARNED),
    "rotation": (compare_rotation, NOT_CALLED),
    "defaults": (compare_defaults, LEARNED),
}
"""What is compared, and the units of which it cannot be."""
# What a unit that is left may raise: it is not equal, has no RoPE, or lacks what the census needs.
FAILURES = (AssertionError, AttributeError, LookupError, RopeError, RuntimeError, TypeError)


def find_problems(unit):
    """Return what each check says of a unit, empty if all is equal."""
    problems = {}
    for name, (compare, skipped) in CHECKS.items():
        if unit.kind not in skipped:
            problems[name] = ""
            try:
                compare(unit)
            except FAILURES as error:
                problems[name] = repr(error)
    return problems


def main():
    every = [(unit, find_problems(unit)) for d in list_directories() for unit in list_units(d)]
    print(f"transformers {transformers.__version__}, {len(every)} configurations")
    for name in CHECKS:
        found = [(unit.kind, problems[name]) for unit, problems in every if name in problems]
        equal = [kind for kind, problem in found if kind not in LEFT and not problem]
        print(f"{name}: {len(equal)} of {len(found)} equal")
    wrong = [(u, found) for u, found in every if any(found.values()) and u.kind not in LEFT]
    print(*(f"  {unit.name}: {problems}" for unit, problems in wrong), sep="\n")


if __name__ == "__main__":
    main()
