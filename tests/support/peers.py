"""How other libraries rotate: their formulae written anew."""

import functools

import numpy as np
import torch

ROWS = 1 << 17


def compute_angles(positions, d=64, base=10000.0):
    w = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    return positions[..., None].float() * w


@functools.cache
def torchtune_cache():
    angles = compute_angles(torch.arange(ROWS))
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def torchtune(x, positions):
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cache = torchtune_cache()[positions].view(-1, pairs.size(1), 1, pairs.size(3), 2)
    first = pairs[..., 0] * cache[..., 0] - pairs[..., 1] * cache[..., 1]
    second = pairs[..., 1] * cache[..., 0] + pairs[..., 0] * cache[..., 1]
    return torch.stack([first, second], -1).flatten(3).type_as(x)


def flash_attn(x, cos, sin, interleaved=True):
    """Its reference in torch: tables of pairs, repeated."""
    y, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if not interleaved:
        cos, sin = (torch.cat((t, t), dim=-1)[:, None] for t in (cos, sin))
        a, b = y.chunk(2, dim=-1)
        return torch.cat([y * cos + torch.cat((-b, a), dim=-1) * sin, rest], dim=-1)
    cos, sin = (t.repeat_interleave(2, dim=-1)[:, None] for t in (cos, sin))
    other = torch.stack([-y[..., 1::2], y[..., ::2]], dim=-1).flatten(-2)
    return torch.cat([y * cos + other * sin, rest], dim=-1)


def keras_hub(x, positions, factor=4.0):
    """Halves stacked and reshaped, of a layer with a factor on frequencies."""
    w = np.power(np.float32(1e4), -np.arange(0, 64, 2, dtype=np.float32) / np.float32(64))
    angles = np.einsum("s,f->sf", positions.astype(np.float32), w / np.float32(factor))
    angles = np.stack([angles, angles], axis=-2).reshape(len(positions), 64)[None, :, None]
    a, b = np.split(x, 2, axis=-1)
    return x * np.cos(angles) + np.stack([-b, a], axis=-2).reshape(x.shape) * np.sin(angles)


def yarn(x, positions):
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
