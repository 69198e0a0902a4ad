"""Check which layout the models of the installed transformers use, and print a Markdown table.

    python docs/model_layouts.py

For each model, its own rotary module and function rotate random queries with the default
configuration (a scaling rule, if there is one, is left out), and RoPE is asked for the same with
the layout claimed below. The last column is the largest difference, for positions below 64, where
float32 angles are still good. The last line counts how many different functions of the name
``apply_rotary_pos_emb`` there are, docstrings and comments aside.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers

import rope_xp

TOKENS = 64
TOLERANCE = 5e-5

LAYOUTS = {
    "llama": "half",
    "mistral": "half",
    "qwen2": "half",
    "qwen3": "half",
    "qwen3_next": "half",
    "gemma": "half",
    "gemma2": "half",
    "gemma3_text": "half",
    "phi": "half",
    "phi3": "half",
    "gpt_neox": "half",
    "gpt_oss": "half",
    "stablelm": "half",
    "persimmon": "half",
    "nemotron": "half",
    "olmo2": "half",
    "falcon": "half",
    "glm4_moe": "half",
    "nanochat": "half, angle negated",
    "gptj": "interleaved",
    "codegen": "interleaved",
    "cohere": "interleaved",
    "cohere2": "interleaved",
    "glm": "interleaved",
    "glm4": "interleaved",
    "ernie4_5": "interleaved",
    "helium": "interleaved",
    "llama4_text": "interleaved",
    "deepseek_v2": "interleaved",
    "deepseek_v4": "interleaved",
    "deepseek_v3": "interleaved_to_half",
    "mistral4": "interleaved_to_half",
}
"""Model type, as in config.json, and layout."""


def configuration(model_type: str) -> Any:
    """Return the default configuration without its scaling rule."""
    config = transformers.AutoConfig.for_model(model_type)
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type", "default") != "default":
        config.rope_parameters = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
    if model_type == "glm4_moe":
        config.head_dim = 128  # the default, 42, halves to an odd number
    return config


def rotary_module(module: ModuleType, config: Any) -> Any:
    """Return the model's own table builder for text."""
    for name, member in inspect.getmembers(module, inspect.isclass):
        own = member.__module__ == module.__name__
        if own and name.endswith("RotaryEmbedding") and "Vision" not in name:
            return member(config=config)
    msg = f"{module.__name__} has no rotary module"
    raise LookupError(msg)


def theirs(model_type: str, config: Any, generator: torch.Generator) -> tuple[Any, Any, Any, str]:
    """Return q, q rotated by the model's code, the base and the axes of q."""
    module = importlib.import_module(
        "transformers.models.{0}.modeling_{0}".format(model_type.removesuffix("_text"))
    )
    if hasattr(module, "create_sinusoidal_positions"):
        q = torch.randn(1, TOKENS, 2, config.rotary_dim, generator=generator)
        table = module.create_sinusoidal_positions(TOKENS, config.rotary_dim)
        sin, cos = table[None].chunk(2, dim=-1)
        return q, module.apply_rotary_pos_emb(q, sin, cos), 10000.0, "bshd"

    rotary, positions = rotary_module(module, config), torch.arange(TOKENS)[None]
    parameters, wanted = config.rope_parameters, inspect.signature(rotary.forward).parameters
    label = {}
    if "layer_type" in wanted and "rope_theta" not in parameters:
        label = {"layer_type": next(iter(parameters))}
        parameters = parameters[label["layer_type"]]
    tables = rotary(torch.zeros(1), positions, **label)
    base = float(parameters["rope_theta"])

    if isinstance(tables, torch.Tensor):  # complex numbers
        axes = "bshd" if model_type == "llama4_text" else "bhsd"
        q = torch.randn(1, TOKENS, TOKENS, 2 * tables.shape[-1], generator=generator)
        return q, module.apply_rotary_emb(q, q, tables)[0], base, axes
    cos, sin = tables
    if model_type == "deepseek_v4":  # one column a pair, one array a call
        q = torch.randn(1, 2, TOKENS, 2 * cos.shape[-1], generator=generator)
        return q, module.apply_rotary_pos_emb(q, cos, sin), base, "bhsd"
    columns = 2 * cos.shape[-1] if model_type == "gpt_oss" else cos.shape[-1]
    q = torch.randn(1, 2, TOKENS, columns, generator=generator)
    function = getattr(module, "apply_rotary_pos_emb_interleave", module.apply_rotary_pos_emb)
    return q, function(q, q, cos, sin)[0], base, "bhsd"


def rotated(config: Any, columns: int) -> str:
    """Return how many of a head's components are rotated."""
    if hasattr(config, "qk_nope_head_dim"):  # latent attention keeps the two parts apart
        rope = config.qk_rope_head_dim
        return f"{rope} of {config.qk_nope_head_dim + rope}"
    whole = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return f"{columns} of {whole}"


def versions_of_apply() -> tuple[int, int]:
    """Return how many different functions ``apply_rotary_pos_emb`` there are, in how many files."""
    found = []
    for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "apply_rotary_pos_emb":
                if ast.get_docstring(node) is not None:
                    del node.body[0]
                found.append(ast.unparse([node.args, *node.body]))
    return len(set(found)), len(found)


def main() -> int:
    generator = torch.Generator().manual_seed(0)
    wrong = []
    print("| model type | layout | rotated components, default configuration | difference |")
    print("|---|---|---|---|")
    for model_type, layout in LAYOUTS.items():
        config = configuration(model_type)
        q, expected, base, axes = theirs(model_type, config, generator)
        sign = -1 if "negated" in layout else 1
        rope = rope_xp.RoPE(base=base, layout=layout.removesuffix(", angle negated"))
        found = rope.rotate(q, sign * torch.arange(TOKENS), axes=axes)
        difference = (found - expected).abs().max().item()
        if difference > TOLERANCE:
            wrong.append(model_type)
        share = rotated(config, q.shape[-1])
        print(f"| {model_type} | {layout} | {share} | {difference:.1e} |")
    functions, files = versions_of_apply()
    print(
        f"\ntransformers {transformers.__version__}: {functions} different functions "
        f"apply_rotary_pos_emb in {files} files"
    )
    if wrong:
        print(f"layout not as claimed: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
