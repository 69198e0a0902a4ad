"""Compare ``from_hf_config`` with every model of the installed transformers.

    python tests/support/census.py            # a table of what is not equal, and the counts

For each configuration class whose rotary module can be built from its defaults, the frequencies and
the attention factor are compared with what the module's own code computes in float64, and the
rotation with the function that the model's attention calls.
``tests/models/test_census.py`` runs the same, a directory a test.
"""

import ast
import importlib
import inspect
import math
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE

if __name__ == "__main__":  # a program finds its neighbours, and not the package that they are in
    sys.path.insert(0, str(Path(__file__).parents[1]))

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.overrides import TorchFunctionMode  # noqa: E402  # needs torch
from torch.utils._pytree import tree_map  # noqa: E402  # needs torch

TOKENS = 48
HEADS = 3
ROTARY = re.compile(r"class (\w*(?:Rotary|RopePosition)\w*Embedding)\(")
UNREADABLE = ("higgs_audio_v2_tokenizer",)  # imports torchaudio
MODELS = Path(transformers.__file__).parent / "models"

# Powers, quotients and products in float64: a few thousand units of 1.1e-16.
FREQUENCIES = 1e-12
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
    "clvp.ClvpEncoderConfig.ClvpRotaryPositionalEmbedding": "it rotates v as well",
    "esmfold2.EsmFold2AtomEncoderConfig.EsmFold2RotaryEmbedding": "two bases, four components",
    "gemma4.Gemma4VisionConfig.Gemma4VisionRotaryEmbedding": "it rotates two slices of a head",
    "minimax_m3_vl.MiniMaxM3VLTextConfig.MiniMaxM3VLRotaryEmbedding": (
        "rotary_dim of its configuration is not heeded by its code"
    ),
    "musicflamingo.MusicFlamingoConfig.MusicFlamingoRotaryEmbedding": "angles of two positions",
    "nanochat.NanoChatConfig.NanoChatRotaryEmbedding": "it turns by the negative angle",
}
"""Units that are not equal, and why."""

LEARNED = {
    "mistral_large4.MistralLarge4TextConfig.MistralLarge4TextRotaryEmbedding": (
        "interleaved_to_half",
        lambda module: module.inv_freq * module.alpha.exp(),
    )
}
"""Layout and frequencies of units whose weights say them: compared with apply_frequencies.

Their configurations say none, so that only the rotation is compared.
"""

NOT_CALLED = {
    "clvp.ClvpEncoderConfig.ClvpRotaryPositionalEmbedding": "its function takes v",
    "hunyuan_vl.HunYuanVLTextConfig.HunYuanVLRotaryEmbedding": (
        "is not a rotation where it has mrope_section, and fails where it has none"
    ),
    **dict.fromkeys(
        (
            "esmfold2.EsmFold2AtomEncoderConfig.EsmFold2RotaryEmbedding",
            "seamless_m4t.SeamlessM4TConfig.SeamlessM4TConformerRotaryPositionalEmbedding",
            "wav2vec2_bert.Wav2Vec2BertConfig.Wav2Vec2BertRotaryPositionalEmbedding",
            "wav2vec2_conformer.Wav2Vec2ConformerConfig.Wav2Vec2ConformerRotaryPositionalEmbedding",
        ),
        "rotates in a method of its attention",
    ),
    **dict.fromkeys(
        (
            "codegen.CodeGenConfig.CodeGenRotaryEmbedding",
            "gptj.GPTJConfig.GPTJRotaryEmbedding",
        ),
        "returns sines before cosines, of a slice of the head: test_census.py",
    ),
}
"""Units whose rotation no function with (q, k, cos, sin) does."""


@dataclass(frozen=True)
class Unit:
    directory: str
    config: Any
    rotary: type
    module: ModuleType

    @property
    def name(self):
        return f"{self.directory}.{type(self.config).__name__}.{self.rotary.__name__}"


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
            for classes in _candidates(ast.parse(text), module, rotary):
                configs = [kind(**MENDED.get(kind.__name__, {})) for kind in classes]
                buildable = [config for config in configs if _can_build(rotary, config)]
                if buildable:
                    yield from (Unit(directory, config, rotary, module) for config in buildable)
                    break


def _candidates(tree, module, rotary):
    """Yield the configuration classes that a rotary module may be made from, likeliest first.

    Those that the models have which call it, by their annotations; its own; the parts of these;
    those that are imported beside it.
    """
    callers = []
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
        if any(ast.unparse(call.func) == rotary.__name__ for call in calls):
            callers += _annotations(getattr(module, node.name), module)
    yield list(dict.fromkeys(callers))
    yield (annotated := _annotations(rotary, module))
    yield list(dict.fromkeys(part for kind in annotated for part in kind.sub_configs.values()))
    plain = transformers.PretrainedConfig
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    yield [kind for kind in members if issubclass(kind, plain) and kind is not plain]


def _annotations(kind, module):
    for parameter in inspect.signature(kind).parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = getattr(module, annotation, None)
        if inspect.isclass(annotation) and issubclass(annotation, transformers.PretrainedConfig):
            return [annotation]
    known = getattr(kind, "config_class", None)
    return [] if known is None else [known]


def _can_build(rotary, config):
    try:
        rotary(config)
    except (AttributeError, KeyError, ValueError, TypeError, RuntimeError):
        return False  # meant for another configuration, or its defaults are impossible
    return True


NAMELESS = ("SaProtConfig", "Qwen3OmniMoeCode2WavConfig")  # have no model_type


def read_ropes(unit):
    layout = "half" if type(unit.config).__name__ in NAMELESS else None
    return rope_xp.from_hf_config(unit.config.to_dict(), layout=layout)


class _Float64Mode(TorchFunctionMode):
    """Has code that asks for float32 by name compute in float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        args, kwargs = tree_map(
            lambda v: wider.get(v, v) if isinstance(v, torch.dtype) else v, (args, kwargs or {})
        )
        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*args, **kwargs)


@contextmanager
def in_float64():
    """Have all that torch makes and computes here be of float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64Mode():
            yield
    finally:
        torch.set_default_dtype(before)


def compare_frequencies(unit):
    with in_float64():
        module = unit.rotary(unit.config)
    ropes, problems = read_ropes(unit), []
    for label, buffer in _buffers(module).items():
        rope, theirs = select_rope(ropes, label), buffer.double().numpy()
        ours = rope.for_length(1).frequencies(rope.rotary_dim or 2 * len(theirs))
        if rope.position_axes is not None:  # each component has the series, in its own order
            theirs, ours = np.unique(theirs.astype("f")), np.unique(ours.astype("f"))
        if ours.shape != theirs.shape:
            problems.append(f"{label} {len(ours)} frequencies for {len(theirs)}")
        elif not np.allclose(ours, theirs, rtol=FREQUENCIES, atol=0):
            problems.append(f"{label} off by {np.abs(ours / theirs - 1).max():.1e}")
        name = f"{label}_attention_scaling" if label else "attention_scaling"
        factor = getattr(module, name, 1.0)
        if abs(rope.attention_factor - factor) > 1e-6:
            problems.append(f"{label} attention factor {rope.attention_factor} for {factor}")
    return "; ".join(problems)


def select_rope(ropes, label):
    """Return the RoPE of a layer type, or the only one where the module has no layer types."""
    if isinstance(ropes, RoPE):
        return ropes
    (rope,) = [ropes[label]] if label else [rope for rope in ropes.values() if rope is not None]
    assert rope is not None
    return rope


def _buffers(module):
    return {  # by layer type
        name.removesuffix("inv_freq").removesuffix("_"): buffer
        for name, buffer in module.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }


def compare_rotation(unit):
    module, problems = unit.rotary(unit.config).eval(), []
    layout, read_frequencies = LEARNED.get(unit.name, ("", None))
    for buffer in module.state_dict().values() if read_frequencies else ():
        buffer.copy_(torch.linspace(-0.3, 0.3, buffer.numel()).view(buffer.shape))  # not zeros
    ropes = RoPE() if read_frequencies else read_ropes(unit)
    for label, buffer in (_buffers(module) or {"": torch.empty(0)}).items():
        rope = select_rope(ropes, label).for_length(TOKENS)
        call = call_model(unit, module, label, buffer, rope)
        arguments = call.q, call.k, call.positions
        if read_frequencies is None:
            rotated = rope.apply(*arguments, axes=call.axes)
        else:
            arguments = *arguments, read_frequencies(module)
            rotated = rope_xp.apply_frequencies(*arguments, layout=layout, axes=call.axes)
        for name, ours, theirs in zip("qk", rotated, call.rotated, strict=True):
            if not (error := (ours - theirs).abs().max().item()) < ROTATION:
                problems.append(f"{label} {name} off by {error:.1e}")
    return "; ".join(problems)


class ModelCall(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    positions: torch.Tensor
    axes: str
    rotated: tuple[torch.Tensor, torch.Tensor]


def call_model(unit, module, label, buffer, rope):
    """Return random q and k, and what the model's code makes of them."""
    generator = torch.Generator().manual_seed(0)
    positions, tables = _compute_tables(module, label, rope, generator)
    apply = find_function(unit)
    wanted = list(inspect.signature(apply).parameters)
    cos = tables[0] if isinstance(tables, tuple) else tables
    axes = "bshd" if unit.directory in ("llama4", "efficientloftr") else "bhsd"
    if cos.ndim == 2 and re.search(r"unsqueeze|None, :", inspect.getsource(apply)):
        axes = "shd"
    sizes = {"b": 1, "h": HEADS, "s": cos.shape[-2], "d": _head_dim(unit, buffer, cos, apply)}
    q, k = (torch.randn([sizes[a] for a in axes], generator=generator) for _ in "qk")
    if wanted[0] in ("x", "tensor"):
        rotated = apply(q, *tables), apply(k, *tables)
    elif isinstance(tables, tuple):
        more = {"unsqueeze_dim": 2} if axes == "bshd" else {}
        rotated = apply(q, k, *tables, **more)
    else:  # complex numbers
        rotated = apply(q, k, tables)
    if axes == "shd" and positions.ndim > 1:
        positions = positions[:, 0]
    return ModelCall(q, k, positions, axes, rotated)


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
    """Return how a file that leaves the defaults out is read differently; empty if it is not."""
    whole = unit.config.to_dict()
    if type(unit.config).__name__ in NAMELESS:
        return ""
    keys = ("rope_parameters", "rope_theta", "partial_rotary_factor")
    ropes = rope_xp.from_hf_config({k: v for k, v in whole.items() if k not in keys})
    expected = rope_xp.from_hf_config(whole)
    if isinstance(expected, dict) and isinstance(ropes, dict):
        ropes = {label: ropes.get(label) for label in expected}
    return "" if ropes == expected else f"{ropes} for {expected}"


CHECKS = {
    "frequencies": compare_frequencies,
    "rotation": compare_rotation,
    "defaults": compare_defaults,
}
SKIPPED = dict(zip(CHECKS, (LEARNED, NOT_CALLED, LEARNED), strict=True))
"""Units of which a check cannot be made."""


def main():
    every = [unit for directory in list_directories() for unit in list_units(directory)]
    print(f"transformers {transformers.__version__}, {len(every)} configurations")
    status = 0
    for name, check in CHECKS.items():
        checkable = [unit for unit in every if unit.name not in SKIPPED[name]]
        equal = [unit for unit in checkable if unit.name not in LEFT]
        different = [(unit.name, problem) for unit in equal if (problem := check(unit))]
        print(f"{name}: {len(equal) - len(different)} of {len(checkable)} equal")
        print(*(f"  {unit}: {problem}" for unit, problem in different), sep="\n")
        status |= bool(different)
    for title, reasons in {"left": LEFT, "no rotation": NOT_CALLED}.items():
        print(f"{title}:", *(f"  {unit}: {reason}" for unit, reason in reasons.items()), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
