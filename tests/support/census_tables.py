"""The tables of every rotary module of transformers, computed by its own code in float64.

    python tests/support/census_tables.py

prints what differs from :meth:`rope_xp.RoPE.table`, and why what is left cannot be compared.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from rope_xp import RoPE
from support import census
from support.census import Unit
from support.rounding import nearest

DTYPES = ("float32", "float16", "bfloat16")
FORMS = ("huggingface", "vllm", "megatron", "complex", "onnx")

_FRACTIONS = "its positions are fractions, and a table has a row for each whole one"
LEFT = {
    **census.LEFT,
    **dict.fromkeys(census.LEARNED, "its frequencies are learned, and in its weights"),
    "dinov3_vit.DINOv3ViTConfig.DINOv3ViTRopePositionEmbedding": _FRACTIONS,
    "eomt_dinov3.EomtDinov3Config.EomtDinov3RotaryEmbedding": _FRACTIONS,
    "sapiens2.Sapiens2Config.Sapiens2RopePositionEmbedding": _FRACTIONS,
    "hunyuan_vl.HunYuanVLTextConfig.HunYuanVLRotaryEmbedding": (
        "its forward fails without mrope_section, which is not in its defaults"
    ),
}
"""Units whose tables are not compared, and why."""

OTHERWISE = {
    **dict.fromkeys(
        ("ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium", "moonshine", "moonshine_streaming"),
        "halves",
    ),
    **dict.fromkeys(("pe_audio", "pe_audio_video", "pe_video"), "halves"),
    **dict.fromkeys(("gpt_oss", "openai_privacy_filter", "deepseek_v4"), "pairs"),
    **dict.fromkeys(("deepseek_v2", "llama4"), "pairs"),  # as complex numbers
}
"""Models whose columns are not doubled as their layout has them, so not as "huggingface" is."""

_WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class _Wider(TorchFunctionMode):
    """Has code that asks for float32 by name compute in float64."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(lambda v: _wider(v), (args, kwargs or {}))
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*args, **kwargs)


def _wider(value: Any) -> Any:
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def in_float64() -> Iterator[None]:
    """Have all that torch makes and computes here be of float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wider():
            yield
    finally:
        torch.set_default_dtype(before)


def tables(unit: Unit) -> list[tuple[RoPE, np.ndarray, np.ndarray, np.ndarray]]:
    """Return for each layer type the rope, positions, and the module's cos and sin in float64.

    Positions (..., tokens), with components first if the rope has some; cos and sin (tokens, r/2).
    """
    ropes, found = census.read(unit), []
    with in_float64():
        module = unit.rotary(unit.config).eval()
        for label in census._buffers(module) or {"": None}:
            rope = census.of(ropes, label).for_length(census.TOKENS)
            generator = torch.Generator().manual_seed(0)
            wanted = list(inspect.signature(module.forward).parameters)
            if wanted == ["hidden_states"] and not hasattr(module, "freqs_ci"):
                positions = torch.arange(census.TOKENS)
                both = tuple(module(torch.zeros(1, census.TOKENS, 1)))
            else:
                positions, both = census._tables(module, label, rope, generator)
            cos, sin = both if isinstance(both, tuple) else (both.real, both.imag)
            assert cos.dtype == torch.float64
            at = positions.numpy()
            at = at[:, 0] if rope.position_axes is not None else at.reshape(-1)
            columns, cos = _pairs(cos)
            usual = "neighbours" if rope.layout == "interleaved" else "halves"
            assert columns == OTHERWISE.get(unit.directory, usual), columns
            found.append((rope, at, cos, _pairs(sin)[1]))
    return found


def _pairs(table: torch.Tensor) -> tuple[str, np.ndarray]:
    """Return how a table of a batch of one is doubled, and (tokens, r/2) of it."""
    host = table.numpy().reshape(-1, table.shape[-1])
    half = host.shape[-1] // 2
    if np.array_equal(host[:, :half], host[:, half:]):
        return "halves", host[:, :half]
    if np.array_equal(host[:, ::2], host[:, 1::2]):
        return "neighbours", host[:, ::2]
    return "pairs", host


def differences(unit: Unit) -> str:
    """Return how a table of a unit differs in any form and dtype; empty where none does."""
    return "; ".join(
        f"{form} in {dtype}: {problem}"
        for rope, at, cos, sin in tables(unit)
        for form in FORMS
        for dtype in DTYPES
        if form != "complex" or dtype == "float32"
        if (problem := _difference(rope, at, cos, sin, form, dtype))
    )


def _difference(
    rope: RoPE, at: np.ndarray, cos: np.ndarray, sin: np.ndarray, form: str, dtype: str
) -> str:
    pairs = cos.shape[-1]
    kind = torch.complex64 if form == "complex" else getattr(torch, dtype)
    length = int(at.max()) + 1
    made = rope.table(length, 2 * pairs, form=form, xp=torch, dtype=kind)
    frequencies = np.abs(rope.frequencies(2 * pairs))
    # What float64 may have lost of an angle, and of its cosine, on either side.
    loss = 8 * 2.0**-53 * (1 + (at[..., None] * frequencies).max()) * rope.attention_factor
    expected = _arranged(form, rope, cos, sin)
    for ours, theirs in zip(made if isinstance(made, tuple) else (made,), expected, strict=True):
        found = _rows(ours, at, rope, form)
        if found.shape != theirs.shape:
            return f"shape {found.shape} for {theirs.shape}"
        low, high = (nearest(theirs + way * loss, dtype) for way in (-1, 1))
        wrong = ~((low <= found) & (found <= high))
        if wrong.any():
            return f"{wrong.mean():.1%} off by up to {np.abs(found - theirs).max():.1e}"
    return ""


def _arranged(form: str, rope: RoPE, cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return what an engine makes of cos and sin (tokens, r/2), by its own code's words."""

    def emb(t: np.ndarray) -> np.ndarray:
        if rope.layout == "interleaved":
            return np.stack((t, t), axis=-1).reshape(len(t), -1)
        return np.concatenate((t, t), axis=-1)

    if form == "megatron":
        return (emb(np.angle(cos + 1j * sin)),)
    if form in ("vllm", "complex"):  # real parts, then imaginary ones
        return (np.concatenate((cos, sin), axis=-1),)
    return (cos, sin) if form == "onnx" else (emb(cos), emb(sin))


def _rows(table: torch.Tensor, at: np.ndarray, rope: RoPE, form: str) -> np.ndarray:
    """Return the rows of positions, each column that of the component which its pair reads."""
    if table.is_complex():
        table = torch.cat((table.real, table.imag), dim=-1)
    host = table.double().numpy()
    host = host.reshape(len(host), -1)
    if rope.position_axes is None:
        return host[at]
    axes = np.array(rope.position_axes)
    twice = {"onnx": axes, "vllm": np.tile(axes, 2), "complex": np.tile(axes, 2)}.get(form)
    if twice is None:
        twice = np.repeat(axes, 2) if rope.layout == "interleaved" else np.tile(axes, 2)
    return np.stack([host[at[a], column] for column, a in enumerate(twice)], axis=-1)


def main() -> int:
    """Print what differs, and how many units do not."""
    every = [unit for name in census.directories() for unit in census.units(name)]
    asked = [unit for unit in every if unit.name not in LEFT]
    different = []
    for unit in asked:
        try:
            problem = differences(unit)
        except Exception as error:  # noqa: BLE001  # a unit more for the list
            problem = repr(error)
        if problem:
            different.append(f"  {unit.name}: {problem[:300]}")
    print(f"tables: {len(asked) - len(different)} of {len(asked)} equal; {len(every)} units")
    print(*different, sep="\n")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
