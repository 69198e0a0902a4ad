"""How other libraries rotate, their formulae written anew, and what RoPE each is.

Those that can be installed beside the tests are called themselves, in tests/testing/test_peers.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rope_xp import RoPE
from rope_xp.scaling import Linear, YaRN

ROWS = 1 << 17


@dataclass(frozen=True)
class Peer:
    """A library's rotation."""

    name: str
    function: Callable[..., Any]
    rope: RoPE
    axes: str = "bhsd"
    head_dim: int = 64
    tables: Callable[..., Any] | None = None
    library: str = "torch"
    refuses: bool = False
    """Whether its table ends at 131072 positions."""


def _inverse(d: int, base: float = 10000.0) -> torch.Tensor:
    return 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))


@functools.cache
def _rows() -> torch.Tensor:
    angles = torch.einsum("i,j->ij", torch.arange(ROWS, dtype=torch.float32), _inverse(64))
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def torchtune(x: Any, positions: Any) -> Any:
    """Neighbours as a last axis of two, with a cache of (rows, pairs, 2)."""
    cache = _rows()[positions]
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cache = cache.view(-1, pairs.size(1), 1, pairs.size(3), 2)
    first = pairs[..., 0] * cache[..., 0] - pairs[..., 1] * cache[..., 1]
    second = pairs[..., 1] * cache[..., 0] + pairs[..., 0] * cache[..., 1]
    return torch.stack([first, second], -1).flatten(3).type_as(x)


def meta(q: Any, k: Any, positions: Any) -> Any:
    """Complex numbers of neighbours, as Meta's code for Llama has them."""
    angles = torch.outer(positions.float(), _inverse(64, 5e5))
    turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def turned(x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

    return turned(q), turned(k)


def flash_attn(x: Any, cos: Any, sin: Any, interleaved: bool = True) -> Any:
    """Its reference in torch: tables of pairs, repeated as the layout has it."""
    y, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if interleaved:
        cos, sin = (t.repeat_interleave(2, dim=-1)[:, None] for t in (cos, sin))
        other = torch.stack([-y[..., 1::2], y[..., ::2]], dim=-1).flatten(-2)
    else:
        cos, sin = (torch.cat([t, t], dim=-1)[:, None] for t in (cos, sin))
        a, b = y.chunk(2, dim=-1)
        other = torch.cat([-b, a], dim=-1)
    return torch.cat([y * cos + other * sin, rest], dim=-1)


def flash_tables(positions: Any) -> Any:
    angles = torch.outer(positions.float(), _inverse(32))
    return angles.cos(), angles.sin()


def liger(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """What its kernel writes: the two halves of a head by the left half of the tables."""
    n = cos.shape[-1] // 2
    c, s = cos[:, None, :, :n], sin[:, None, :, :n]

    def turned(x: Any) -> Any:
        a, b = x[..., :n], x[..., n:]
        out = torch.empty_like(x)
        out[..., :n] = a * c - b * s
        out[..., n:] = b * c + a * s
        return out

    return turned(q), turned(k)


def doubled_tables(positions: Any) -> Any:
    angles = positions[..., None].float() * _inverse(64)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def gpt_neox(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """rotate_half of a part of the head; the rest is put behind it again."""
    cos, sin = cos[:, None], sin[:, None]
    r = cos.shape[-1]

    def turned(x: Any) -> Any:
        y = x[..., :r]
        half = torch.cat([-y[..., r // 2 :], y[..., : r // 2]], dim=-1)
        return torch.cat([y * cos + half * sin, x[..., r:]], dim=-1)

    return turned(q), turned(k)


def keras_hub(x: Any, positions: Any, factor: float = 4.0) -> Any:
    """Halves stacked and reshaped, of a layer with a factor on frequencies."""
    w = np.power(np.float32(1e4), -np.arange(0, 64, 2, dtype=np.float32) / np.float32(64))
    angles = np.einsum("s,f->sf", positions.astype(np.float32), w / np.float32(factor))
    angles = np.stack([angles, angles], axis=-2).reshape(len(positions), 64)[None, :, None]
    a, b = np.split(x, 2, axis=-1)
    half = np.stack([-b, a], axis=-2).reshape(x.shape)
    return x * np.cos(angles) + half * np.sin(angles)


def yarn(x: Any, positions: Any) -> Any:
    """YaRN's own code: mscale on cos and sin, a ramp between two pairs."""
    d, factor, trained = 64, 16.0, 4096
    plain = _inverse(d)

    def pair(turns: float) -> float:
        return float(d * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(10000.0)))

    low, high = int(np.floor(pair(32.0))), int(np.ceil(pair(1.0)))
    ramp = ((torch.arange(d // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    w = plain / factor * ramp + plain * (1 - ramp)
    angles = torch.outer(positions.float(), w)
    angles = torch.cat([angles, angles], dim=-1)
    scale = 0.1 * np.log(factor) + 1.0
    half = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
    return x * (angles.cos() * scale) + half * (angles.sin() * scale)


PEERS = (
    Peer("torchtune", torchtune, RoPE(), axes="bshd", refuses=True),
    Peer("meta", meta, RoPE(base=5e5), axes="bshd"),
    Peer("flash-attn", flash_attn, RoPE(rotary_dim=32), axes="bshd", tables=flash_tables),
    Peer("liger", liger, RoPE(layout="half"), tables=doubled_tables),
    Peer("gpt-neox", gpt_neox, RoPE(layout="half", rotary_dim=64), tables=doubled_tables,
         head_dim=96),
    Peer("keras-hub", keras_hub, RoPE(layout="half", scaling=Linear(4.0)), axes="bshd",
         library="numpy"),
    Peer("yarn", yarn, RoPE(layout="half", scaling=YaRN(16.0, 4096))),
)  # fmt: skip
