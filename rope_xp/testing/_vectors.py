"""Vectors for ports: inputs and expected results of every kind of layer, in a safetensors file.

Results are computed here in float64, by complex numbers, and share only frequencies with the
library. docs/vectors.md describes the file. The same plan gives the same bytes.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp.hf import LayerPlan, NormPlan, _limits
from rope_xp.hf._layer_plan import describe
from rope_xp.hf._plan import group_layers
from rope_xp.testing._norm import Floats, divide
from rope_xp.testing._pairs import list_pairs
from rope_xp.testing._rounding import NARROW

Tensors = dict[str, NDArray[Any]]

_MULTIPLIERS = [np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]
_MOST_KINDS = 64
_TEXT = ([0, 1, 2], [6, 7])
_SMALL = 2.0**-10
"""The size of one token that is normalized: it makes eps count."""
_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint16": "BF16"}


@dataclass(frozen=True)
class Vectors:
    """Tensors and metadata of a safetensors file; bfloat16 has the dtype uint16, its bits."""

    tensors: Mapping[str, NDArray[Any]]
    metadata: Mapping[str, str]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, whose bytes depend on the plan alone."""
        header: dict[str, Any] = {"__metadata__": dict(self.metadata)}
        parts, end = [], 0
        for name, x in sorted(self.tensors.items(), key=lambda t: (-t[1].itemsize, t[0])):
            parts.append(x.astype(x.dtype.newbyteorder("<")).tobytes())
            start, end = end, end + len(parts[-1])
            dtype, shape = _DTYPES[x.dtype.name], list(x.shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at multiples of their width
        Path(path).write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def vectors(layers: Sequence[LayerPlan]) -> Vectors:
    """Return inputs and expected results of every kind of layer of a plan.

    A port in another language reads them and compares, as :doc:`/vectors` describes.

    Parameters
    ----------
    layers : sequence of LayerPlan
        See :func:`rope_xp.plan`. Layers without attention are left out.

    Returns
    -------
    Vectors
        With ``tensors``, ``metadata`` and ``save(path)``.

    Raises
    ------
    RopeError
        If no layer has attention, or if kinds or heads are more or larger than those of any model.

    Examples
    --------
    >>> import rope_xp
    >>> from rope_xp.hf import LayerPlan
    >>> from rope_xp.testing import vectors
    >>> rope = rope_xp.RoPE(layout="half")
    >>> layer = LayerPlan(kind="attention", rope=rope, head_dim=8, heads=4, kv_heads=2)
    >>> vectors([layer]).tensors["attention/decode/q_rotated"].shape
    (4, 1, 2, 8)
    """
    tensors: Tensors = {}
    kinds, groups = {}, group_layers(layers)
    _limits.check_size("kinds of layers", groups, _MOST_KINDS)
    for name, (layer, members) in groups.items():
        if layer.head_dim is None:
            continue
        _limits.check_number("head_dim", layer.head_dim, _limits.COMPONENTS)
        kinds[name] = {"layers": members, **describe(layer)}
        tensors |= _build_kind(name, layer)
        if layer.indexer is not None:
            head_dim, rope = layer.indexer.head_dim, layer.indexer.rope
            own = LayerPlan(kind=name, rope=rope, head_dim=head_dim, heads=2, kv_heads=1)
            tensors |= _build_kind(f"{name}.indexer", own)
    if not kinds:
        raise RopeError("layers must have at least one with attention, to make vectors of it")
    return Vectors(tensors, {"format": "rope_xp vectors 1", "kinds": json.dumps(kinds)})


def _list_cases(components: int) -> Iterator[tuple[str, NDArray[np.int64], Tensors]]:
    """Yield name, positions (batch, tokens), packed (tokens,), components first, and the rest."""
    starts = np.array([5, 1000])
    text: dict[str, tuple[NDArray[np.int64], Tensors]] = {
        "prefill": (np.arange(7)[None], {}),
        "decode": (np.array([[17], [0], [4095], [9]]), {}),
        "packed": (np.array([0, 1, 2, 3, 0, 1, 2, 3, 4]), {"cu_seqlens": np.array([0, 4, 9])}),
        "offsets": (starts[:, None] + np.arange(3), {"offsets": starts}),
        "far": (1_000_000 + np.arange(-1, 2)[None], {}),
        "slots": (np.array([[3, 4, 5]]), {"slots": np.array([[5, 0, 2]])}),
    }
    for name, (positions, more) in text.items():
        shape = (components, *positions.shape) if components else positions.shape
        yield name, np.broadcast_to(positions, shape), more
    if components:  # three tokens of text, two rows of three patches, and two tokens of text
        patches = np.full((components, 6), 3)
        patches[-min(components, 3) :][-2:] += np.divmod(np.arange(6), 3)
        ends = [np.broadcast_to(np.array(line), (components, len(line))) for line in _TEXT]
        yield "images", np.concatenate([ends[0], patches, ends[1]], axis=1)[:, None], {}


def _build_kind(name: str, layer: LayerPlan) -> Tensors:
    rope, norm, head_dim = layer.rope, layer.norm, layer.head_dim or 0
    axes, factor = getattr(rope, "position_axes", None), getattr(rope, "attention_factor", 1.0)
    heads = {"q": min(layer.heads or 1, 2), "k": 2 if layer.kv_heads == layer.heads != 1 else 1}
    tensors: Tensors = {"tolerance": max(1.0, factor) * np.array([8e-6, 2.0**-5])}
    pairs, part = np.zeros((4, 0), np.int64), slice(None)  # part of a head, that a norm spans
    if rope is not None:
        count, first = slice_of(rope, head_dim)
        pairs = first + list_pairs(rope.layout, count)
        tensors |= {"pairs": pairs, "attention_factor": np.array([factor])}
        if norm is not None and norm.over == "slice":
            part = slice(first, first + count)
    if axes is not None:
        tensors["axes"] = np.array(axes)
    over, offset = getattr(norm, "over", "head"), getattr(norm, "offset", 0.0)
    for i, array in enumerate(() if norm is None else norm.weighted):
        width = len(range(head_dim)[part]) * (heads[array] if over == "all heads" else 1)
        weight = 1.0 - offset + _make_input((width,), 90 + i) / 4.0
        tensors[f"{array}_weight"] = weight.astype(np.float32)
    components = 0 if axes is None else max(axes) + 1
    for n, case in enumerate(_list_cases(components)):
        tensors |= _build_case(n, case, layer, heads, pairs, part, tensors)
    return {f"{name}/{key}": x for key, x in tensors.items()}


def _build_case(
    n: int,
    case: tuple[str, NDArray[np.int64], Tensors],
    layer: LayerPlan,
    heads: dict[str, int],
    pairs: NDArray[np.int64],
    part: slice,
    weights: Tensors,
) -> Tensors:
    rope, norm, head_dim = layer.rope, layer.norm, layer.head_dim or 0
    axes, factor = getattr(rope, "position_axes", None), getattr(rope, "attention_factor", 1.0)
    name, positions, more = case
    own: Tensors = {"positions": positions, **more}
    if layer.temperature is not None:
        own["query_factors"] = layer.query_factors(positions)
    turns = np.ones(0)
    if rope is not None:
        at_length = rope.for_length(int(positions.max()) + 1)
        own["frequencies"] = at_length.frequencies(head_dim)
        read = positions[None] if axes is None else positions[list(axes)]
        by_pair = np.moveaxis(read, 0, -1)
        turns = factor * np.exp(1j * by_pair * own["frequencies"])
    for i, array in enumerate("qk"):
        shape = (*positions.shape[axes is not None :], heads[array], head_dim)
        x = _make_input(shape, 2 * n + i)
        if norm is not None and name == "prefill":
            x[:, 1] *= _SMALL
        own[array] = x.astype(np.float32)
        results = {"rotated": _rotate(x, turns, pairs)}
        if norm is not None and array in norm.arrays:
            y = results["rotated"] if norm.after_rotation else x
            y = _normalize(y, norm, weights.get(f"{array}_weight"), part)
            y = y if norm.after_rotation else _rotate(y, turns, pairs)
            results["normalized_rotated"] = y
        for label, y in results.items():
            own[f"{array}_{label}"] = y.astype(np.float32)
            bits = NARROW["bfloat16"](y).astype(np.float32).view(np.uint32) >> 16
            own[f"{array}_{label}_bfloat16"] = bits.astype(np.uint16)
    if "slots" in own:
        own["k_cache"] = _make_input((6, heads["k"], head_dim), 80).astype(np.float32)
        own["k_cache_rotated"] = own["k_cache"].copy()
        own["k_cache_rotated"][own["slots"][0]] = own["k_rotated"][0]
    return {f"{name}/{key}": x for key, x in own.items()}


def _make_input(shape: tuple[int, ...], seed: int) -> Floats:
    """Return multiples of 1/64 from -2 to below 2, which bfloat16 holds, by Vigna's SplitMix64."""
    # Not of a generator of numpy, whose versions may give other numbers.
    z = (np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(seed << 32)) * _MULTIPLIERS[0]
    for shift, multiplier in ((30, _MULTIPLIERS[1]), (27, _MULTIPLIERS[2])):
        z = (z ^ (z >> np.uint64(shift))) * multiplier
    return ((z >> np.uint64(56)).astype(np.float64) - 128.0).reshape(shape) / 64.0


def _rotate(x: Floats, turns: NDArray[Any], pairs: NDArray[np.int64]) -> Floats:
    a, b, c, d = pairs
    z, y = (x[..., a] + 1j * x[..., b]) * turns[..., None, :], x.copy()
    y[..., c], y[..., d] = z.real, z.imag
    return y


def _normalize(x: Floats, norm: NormPlan, weight: Any, part: slice) -> Floats:
    result, y = x.copy(), x[..., part]
    y = y.reshape(*y.shape[:-2], 1, -1) if norm.over == "all heads" else y
    y = y - y.mean(-1, keepdims=True) if norm.kind == "layer" else y
    y = divide(y, norm.eps)
    y = y if weight is None else y * (weight.astype(np.float64) + norm.offset)
    result[..., part] = y.reshape(result[..., part].shape)
    return result
