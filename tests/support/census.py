"""Compare ``from_hf_config`` with the code of every model of the installed transformers.

    python tests/support/census.py            # a table of what is not equal, and the counts

For each configuration class whose rotary module can be built from its defaults, the frequencies and
the attention factor are compared with the module's buffers, and the rotation with the function that
the model's attention calls. ``tests/models/test_census.py`` runs the same, a directory a test.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE

if __name__ == "__main__":  # a program finds its neighbours, and not the package that they are in
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.census_lists import LEARNED, LEFT, MENDED, NOT_CALLED  # as above

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 48
HEADS = 3
ROTARY = re.compile(r"class (\w*(?:Rotary|RopePosition)\w*Embedding)\(")
UNREADABLE = ("higgs_audio_v2_tokenizer",)  # imports torchaudio
MODELS = Path(transformers.__file__).parent / "models"

# transformers computes powers, quotients and products in float32: a few units of 6e-8.
FREQUENCIES = 1e-6
# Its angles are float32 products below 48, good to 48 * 6e-8, and |x| below 5.
ROTATION = 5e-5


@dataclass(frozen=True)
class Unit:
    """A configuration class and a rotary module that can be built from it."""

    directory: str
    config: Any
    rotary: type
    module: ModuleType

    @property
    def name(self) -> str:
        return f"{self.directory}.{type(self.config).__name__}.{self.rotary.__name__}"


def directories() -> list[str]:
    """Return the model directories with a rotary module, found without importing them."""
    found = {
        path.parent.name
        for path in MODELS.glob("*/modeling_*.py")
        if ROTARY.search(path.read_text(encoding="utf-8"))
    }
    return sorted(found.difference(UNREADABLE))


def units(directory: str) -> Iterator[Unit]:
    """Yield the units of one directory."""
    for path in sorted((MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for name in dict.fromkeys(ROTARY.findall(text)):
            rotary = getattr(module, name)
            for classes in _candidates(tree, module, rotary):
                configs = [kind(**MENDED.get(kind.__name__, {})) for kind in classes]
                built = [config for config in configs if _builds(rotary, config) is not None]
                if built:
                    yield from (Unit(directory, config, rotary, module) for config in built)
                    break


def _candidates(tree: ast.Module, module: ModuleType, rotary: type) -> Iterator[list[type]]:
    """Yield the configuration classes that a rotary module may be made from, likeliest first.

    Those that the models have which call it, by their annotations; its own; the parts of these;
    those that are imported beside it.
    """
    found = []
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
        if any(ast.unparse(call.func) == rotary.__name__ for call in calls):
            found += _annotations(getattr(module, node.name), module)
    yield list(dict.fromkeys(found))
    yield (own := _annotations(rotary, module))
    yield list(dict.fromkeys(part for kind in own for part in kind.sub_configs.values()))
    plain = transformers.PretrainedConfig
    members = [member for _, member in inspect.getmembers(module, inspect.isclass)]
    yield [kind for kind in members if issubclass(kind, plain) and kind is not plain]


def _annotations(kind: type, module: ModuleType) -> list[type]:
    """Return the configuration class that a class is made from."""
    for parameter in inspect.signature(kind).parameters.values():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = getattr(module, annotation, None)
        if inspect.isclass(annotation) and issubclass(annotation, transformers.PretrainedConfig):
            return [annotation]
    known = getattr(kind, "config_class", None)
    return [] if known is None else [known]


def _builds(rotary: type, config: Any) -> Any:
    try:
        return rotary(config)
    except (AttributeError, KeyError, ValueError, TypeError, RuntimeError):
        return None  # meant for another configuration, or its defaults are impossible


NAMELESS = ("SaProtConfig", "Qwen3OmniMoeCode2WavConfig")  # have no model_type


def read(unit: Unit) -> Any:
    """Return what from_hf_config makes of a configuration, which may have to be told the layout."""
    layout = "half" if type(unit.config).__name__ in NAMELESS else None
    return rope_xp.from_hf_config(unit.config.to_dict(), layout=layout)


# --- frequencies ---------------------------------------------------------------------------------


def frequencies(unit: Unit) -> str:
    """Return how frequencies and attention factor differ; empty where they do not."""
    module = unit.rotary(unit.config)
    ropes = read(unit)
    problems = []
    for label, buffer in _buffers(module).items():
        rope = of(ropes, label)
        expected = buffer.double().numpy()
        wide = rope.rotary_dim or 2 * len(expected)
        found = rope.for_length(1).frequencies(wide)
        if rope.position_axes is not None:  # each component has the series, in its own order
            expected, found = np.unique(expected), np.unique(found.astype(np.float32))
        if found.shape != expected.shape:
            problems.append(f"{label} {len(found)} frequencies for {len(expected)}")
        elif not np.allclose(found, expected, rtol=FREQUENCIES, atol=0):
            problems.append(f"{label} off by {np.abs(found / expected - 1).max():.1e}")
        factor = getattr(
            module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0
        )
        if abs(rope.attention_factor - factor) > 1e-6:
            problems.append(f"{label} attention factor {rope.attention_factor} for {factor}")
    return "; ".join(problems)


def of(ropes: RoPE | dict[str, RoPE | None], label: str) -> RoPE:
    """Return the RoPE of a layer type, or the only one where the module has no layer types."""
    if isinstance(ropes, RoPE):
        return ropes
    (rope,) = [ropes[label]] if label else [rope for rope in ropes.values() if rope is not None]
    assert rope is not None
    return rope


def _buffers(module: Any) -> dict[str, torch.Tensor]:
    """Return the frequencies of a rotary module by layer type."""
    return {
        name.removesuffix("inv_freq").removesuffix("_"): buffer
        for name, buffer in module.named_buffers()
        if name.endswith("inv_freq") and "original" not in name
    }


# --- rotation ------------------------------------------------------------------------------------


def rotation(unit: Unit) -> str:
    """Return how rotated q and k differ; empty where they do not."""
    module = unit.rotary(unit.config).eval()
    if unit.name in LEARNED:
        return learned(unit, module)
    ropes = read(unit)
    problems = []
    for label, buffer in (_buffers(module) or {"": torch.empty(0)}).items():
        rope = of(ropes, label).for_length(TOKENS)
        call = theirs(unit, module, label, buffer, rope)
        found = rope.apply(call.q, call.k, call.positions, axes=call.axes)
        problems += _differences(label, found, call)
    return "; ".join(problems)


def learned(unit: Unit, module: Any) -> str:
    """Return how q and k differ, rotated by frequencies that a module holds."""
    layout, read_frequencies = LEARNED[unit.name]
    for buffer in module.state_dict().values():  # which a new module has at zero
        buffer.copy_(torch.linspace(-0.3, 0.3, buffer.numel()).view(buffer.shape))
    call = theirs(unit, module, "", module.inv_freq, RoPE())
    found = rope_xp.apply_frequencies(
        *(call.q, call.k, call.positions, read_frequencies(module)), layout=layout, axes=call.axes
    )
    return "; ".join(_differences("", found, call))


def _differences(label: str, found: tuple[torch.Tensor, torch.Tensor], call: Call) -> list[str]:
    problems = []
    for name, ours, expected in zip("qk", found, call.rotated, strict=True):
        difference = (ours - expected).abs().max().item()
        if not difference < ROTATION:
            problems.append(f"{label} {name} off by {difference:.1e}")
    return problems


@dataclass(frozen=True)
class Call:
    """What a model's code was given and what it returned."""

    q: torch.Tensor
    k: torch.Tensor
    positions: torch.Tensor
    axes: str
    rotated: tuple[torch.Tensor, torch.Tensor]


def theirs(unit: Unit, module: Any, label: str, buffer: torch.Tensor, rope: RoPE) -> Call:
    """Return random q and k, and what the model's code makes of them."""
    generator = torch.Generator().manual_seed(0)
    positions, tables = _tables(module, label, rope, generator)
    apply = function(unit)
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
    return Call(q, k, positions, axes, rotated)


def _tables(
    module: Any, label: str, rope: RoPE, generator: torch.Generator
) -> tuple[torch.Tensor, Any]:
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
    axial = isinstance(rope.scaling, rope_xp.scaling.Axial)
    given = positions[:, 0].T if axial else positions[0] if components == 1 else positions
    more = {"layer_type": label} if label else {}
    tables = module(torch.zeros(1), given, **more)
    return positions[0] if components == 1 else positions, tables


NAMES = ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb", "apply_rotary_emb")
VISION = (
    *("apply_rotary_pos_emb_vision", "vision_apply_rotary_emb", "apply_rotary_pos_emb_2d"),
    "apply_rotary_pos_emb_2d_self_attn",
)


def function(unit: Unit) -> Callable[..., Any]:
    """Return the function with which the model rotates."""
    names = VISION if re.search("Vision|ViT|MLCD", unit.rotary.__name__) else ()
    names += NAMES[1:] if "Audio" in unit.rotary.__name__ else NAMES
    for name in names:
        if hasattr(unit.module, name):
            return getattr(unit.module, name)  # type: ignore[no-any-return]  # a function
    msg = f"{unit.name} has no function that rotates"
    raise LookupError(msg)


def _head_dim(
    unit: Unit, buffer: torch.Tensor, cos: torch.Tensor, apply: Callable[..., Any]
) -> int:
    """Return the components that the function takes: all of a head where it picks the slice."""
    once = cos.is_complex() or cos.shape[-1] == len(buffer)  # not twice, once for each of a pair
    rotated = cos.shape[-1] * (1 + once)
    head_dim = unit.config.to_dict().get("head_dim") or 0
    picks = re.search(r"rot(ary)?_dim|rope_dim", inspect.getsource(apply))
    return int(max(rotated, head_dim) if picks else rotated)


# --- defaults ------------------------------------------------------------------------------------

ROPE_KEYS = ("rope_parameters", "rope_theta", "partial_rotary_factor")


def defaults(unit: Unit) -> str:
    """Return whether a file that leaves the defaults out is read as something else."""
    whole = unit.config.to_dict()
    if type(unit.config).__name__ in NAMELESS:
        return ""
    short = {key: value for key, value in whole.items() if key not in ROPE_KEYS}
    found, expected = rope_xp.from_hf_config(short), rope_xp.from_hf_config(whole)
    if isinstance(expected, dict) and isinstance(found, dict):
        found = {label: found.get(label) for label in expected}
    return "" if found == expected else f"{found} for {expected}"


CHECKS = {"frequencies": frequencies, "rotation": rotation, "defaults": defaults}


def is_asked(check: str, unit: str) -> bool:
    """Return whether a check can be made of a unit."""
    return unit not in NOT_CALLED if check == "rotation" else unit not in LEARNED


def versions_of_apply() -> tuple[int, int]:
    """Return how many different functions apply_rotary_pos_emb there are, in how many files.

    Docstrings and comments aside.
    """
    found = []
    for path in MODELS.glob("*/modeling_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "apply_rotary_pos_emb":
                if ast.get_docstring(node) is not None:
                    del node.body[0]
                found.append(ast.unparse([node.args, *node.body]))
    return len(set(found)), len(found)


def main() -> int:
    """Print what is left and how many units are equal in each respect."""
    every = [unit for directory in directories() for unit in units(directory)]
    lines, status = [], 0
    for name, check in CHECKS.items():
        asked = [unit for unit in every if is_asked(name, unit.name)]
        equal = [unit for unit in asked if unit.name not in LEFT]
        different = [(unit.name, problem) for unit in equal if (problem := check(unit))]
        lines.append(f"{name}: {len(equal) - len(different)} of {len(asked)} equal")
        lines += [f"  {unit}: {problem}" for unit, problem in different]
        status |= bool(different)
    print(f"transformers {transformers.__version__}, {len(every)} configurations")
    print(*lines, "left:", *(f"  {unit}: {why}" for unit, why in LEFT.items()), sep="\n")
    print(
        "rotation not called:", *(f"  {unit}: {why}" for unit, why in NOT_CALLED.items()), sep="\n"
    )
    functions, files = versions_of_apply()
    print(f"{functions} different functions apply_rotary_pos_emb in {files} files")
    return status


if __name__ == "__main__":
    sys.exit(main())
