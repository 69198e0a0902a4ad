"""No false alarm over the rotations of other libraries: their code, or their formulae anew."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rope_xp import RoPE, scaling
from rope_xp.testing import Identified, assert_rotates, identify
from rope_xp.testing._compare import list_differences

ROWS = 1 << 17
TORCH, NUMPY = torch.zeros(1), np.zeros(1, np.float32)


class Peer(NamedTuple):
    """A library's rotation, and the RoPE that it is."""

    function: Callable[..., Any]
    rope: RoPE
    axes: str = "bshd"
    head_dim: int = 64
    tables: Callable[..., Any] | None = None
    like: Any = TORCH
    refuses: bool = False
    """Whether its table ends at 131072 positions."""


def compute_angles(positions: Any, d: int = 64, base: float = 10000.0) -> torch.Tensor:
    w = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    return positions[..., None].float() * w


@functools.cache
def torchtune_cache() -> torch.Tensor:
    angles = compute_angles(torch.arange(ROWS))
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def torchtune(x: Any, positions: Any) -> Any:
    """Neighbours as a last axis of two, with a cache of (rows, pairs, 2)."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cache = torchtune_cache()[positions].view(-1, pairs.size(1), 1, pairs.size(3), 2)
    first = pairs[..., 0] * cache[..., 0] - pairs[..., 1] * cache[..., 1]
    second = pairs[..., 1] * cache[..., 0] + pairs[..., 0] * cache[..., 1]
    return torch.stack([first, second], -1).flatten(3).type_as(x)


def meta(q: Any, k: Any, positions: Any) -> Any:
    """Complex numbers of neighbours, as Meta's code for Llama has them."""
    angles = compute_angles(positions, base=5e5)
    turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    pairs = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (q, k))
    return tuple(torch.view_as_real(x * turns).flatten(3).type_as(q) for x in pairs)


def flash_attn(x: Any, cos: Any, sin: Any) -> Any:
    """Its reference in torch: tables of pairs, repeated."""
    y, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    cos, sin = (t.repeat_interleave(2, dim=-1)[:, None] for t in (cos, sin))
    other = torch.stack([-y[..., 1::2], y[..., ::2]], dim=-1).flatten(-2)
    return torch.cat([y * cos + other * sin, rest], dim=-1)


def flash_tables(positions: Any) -> Any:
    angles = compute_angles(positions, 32)
    return angles.cos(), angles.sin()


def gpt_neox(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """rotate_half of a part of the head; the rest is put behind it again."""
    cos, sin = cos[:, None], sin[:, None]
    r = cos.shape[-1]

    def rotate(x: Any) -> Any:
        y = x[..., :r]
        half = torch.cat([-y[..., r // 2 :], y[..., : r // 2]], dim=-1)
        return torch.cat([y * cos + half * sin, x[..., r:]], dim=-1)

    return rotate(q), rotate(k)


def liger(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """The two halves of a head by the left half of the tables, as its kernel writes them."""
    n = cos.shape[-1] // 2
    c, s = cos[:, None, :, :n], sin[:, None, :, :n]
    halves = ((x[..., :n], x[..., n:]) for x in (q, k))
    return tuple(torch.cat([a * c - b * s, b * c + a * s], dim=-1) for a, b in halves)


def doubled_tables(positions: Any) -> Any:
    angles = compute_angles(positions)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def keras_hub(x: Any, positions: Any, factor: float = 4.0) -> Any:
    """Halves stacked and reshaped, of a layer with a factor on frequencies."""
    w = np.power(np.float32(1e4), -np.arange(0, 64, 2, dtype=np.float32) / np.float32(64))
    angles = np.einsum("s,f->sf", positions.astype(np.float32), w / np.float32(factor))
    angles = np.stack([angles, angles], axis=-2).reshape(len(positions), 64)[None, :, None]
    a, b = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.stack([-b, a], axis=-2).reshape(x.shape) * np.sin(angles)


def yarn(x: Any, positions: Any) -> Any:
    """YaRN's own code: mscale on cos and sin, a ramp between two pairs."""
    factor, plain = 16.0, compute_angles(torch.ones(()))
    low, high = (64 * np.log(4096 / (n * 2 * np.pi)) / (2 * np.log(1e4)) for n in (32.0, 1.0))
    low, high = int(np.floor(low)), int(np.ceil(high))
    ramp = ((torch.arange(32, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    angles = torch.outer(positions.float(), plain / factor * ramp + plain * (1 - ramp))
    angles = torch.cat([angles, angles], dim=-1)
    scale = 0.1 * np.log(factor) + 1.0
    half = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
    return x * (angles.cos() * scale) + half * (angles.sin() * scale)


PEERS = {
    "torchtune": Peer(torchtune, RoPE(), refuses=True),
    "meta": Peer(meta, RoPE(base=5e5)),
    "flash-attn": Peer(flash_attn, RoPE(rotary_dim=32), tables=flash_tables),
    "liger": Peer(liger, RoPE(layout="half"), "bhsd", tables=doubled_tables),
    "gpt-neox": Peer(gpt_neox, RoPE(layout="half", rotary_dim=64), "bhsd", 96, doubled_tables),
    "keras-hub": Peer(keras_hub, RoPE(layout="half", scaling=scaling.Linear(4.0)), like=NUMPY),
    "yarn": Peer(yarn, RoPE(layout="half", scaling=scaling.YaRN(16.0, 4096)), "bhsd"),
}


def check(result: Identified, rope: RoPE, head_dim: int, refuses: bool = False) -> None:
    """Check that a RoPE was found, without a fault and as exact as products in float32 are."""
    expected = replace(rope, rotary_dim=rope.rotary_dim or head_dim)
    assert list_differences(replace(result.rope, scaling=rope.scaling), expected, head_dim) == []
    assert type(result.rope.scaling) is type(rope.scaling)
    assert result.frequencies == pytest.approx(expected.frequencies(head_dim), rel=1e-6)
    assert result.faults == ()
    assert result.error[4096] < 5e-3
    assert bool([n for n in result.notes if "are refused" in n]) == refuses


@pytest.mark.parametrize("name", PEERS)
def test_formulae(name: str) -> None:
    function, rope, axes, head_dim, tables, like, refuses = PEERS[name]
    result = identify(function, head_dim, axes=axes, tables=tables, like=like)
    check(result, rope, head_dim, refuses)
    positions = (0, 5, 4097, ROWS - 1 if refuses else 2 * ROWS)
    assert_rotates(
        *(function, rope, head_dim), axes=axes, tables=tables, positions=positions, like=like
    )


@pytest.mark.parametrize(
    ("options", "rope"),
    [
        ({"theta": 5e5}, RoPE(base=5e5)),
        ({"theta_rescale_factor": 8.0}, RoPE(scaling=scaling.NTK(8.0))),
        ({"learned_freq": True}, RoPE()),  # as they are before they learn
        ({"use_xpos": True}, None),  # its factor is relative to the middle of a call
    ],
    ids=str,
)
def test_rotary_embedding_torch(options: dict[str, Any], rope: RoPE | None) -> None:
    library = pytest.importorskip("rotary_embedding_torch")
    module = library.RotaryEmbedding(64, cache_if_possible=False, **options)

    def function(x: Any, positions: Any) -> Any:
        angles, p = module.forward(positions.float()), positions.float()
        return library.apply_rotary_emb(angles, x, scale=1.0 if rope else module.get_scale(p))

    if rope is not None:
        check(identify(function, 64, like=TORCH), rope, 64)
        return
    with pytest.raises(ValueError, match="turned otherwise alone in a call"):
        identify(function, 64, like=TORCH)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_onnx(interleaved: int) -> None:
    onnx = pytest.importorskip("onnx")
    reference = importlib.import_module("onnx.reference")
    helper, names = onnx.helper, ["x", "cos", "sin", "y"]
    node = helper.make_node("RotaryEmbedding", names[:3], names[3:], interleaved=interleaved)
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names]
    graph = helper.make_graph([node], "rotation", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    session = reference.ReferenceEvaluator(model)

    def tables(positions: Any) -> Any:
        angles = positions[..., None] * 10000.0 ** (-np.arange(16) / 16)
        return tuple(f(angles).astype(np.float32) for f in (np.cos, np.sin))

    def function(x: Any, *cos_sin: Any) -> Any:
        cos, sin = (np.broadcast_to(t, (len(x), *t.shape[-2:])) for t in cos_sin)
        return session.run(None, {"x": x, "cos": cos, "sin": sin})[0]

    rope = RoPE(layout="interleaved" if interleaved else "half")
    check(identify(function, 32, tables=tables, like=NUMPY), rope, 32)
