"""The model of train_tiny.py in torch: a decoder with norms before its layers, as plain functions.

Weights are a dict of tensors. train_tiny_jax.py has the same functions in jax.
"""

from __future__ import annotations

import math

import torch
from tiny_shared import ALPHABET, Config
from torch import Tensor
from torch.nn import functional

from rope_xp import RoPE
from rope_xp.papers import attention, encodings

Weights = dict[str, Tensor]
ROPE = RoPE()


def initial(config: Config, seed: int) -> Weights:
    """Return random weights; those that two models of one seed have in common are equal."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, size: float) -> Tensor:
        return size * torch.randn(shape, generator=generator)

    d = config.width
    weights = {"embedding": normal(len(ALPHABET), d, size=d**-0.5), "norm": torch.ones(d)}
    for i in range(config.layers):
        # What is added to x is smaller the more layers add to it.
        out = (2 * config.layers) ** -0.5
        weights |= {
            f"{i}/attention/norm": torch.ones(d),
            f"{i}/attention/qkv": normal(d, 3 * d, size=d**-0.5),
            f"{i}/attention/out": normal(d, d, size=out * d**-0.5),
            f"{i}/mlp/norm": torch.ones(d),
            f"{i}/mlp/in": normal(d, 4 * d, size=d**-0.5),
            f"{i}/mlp/out": normal(4 * d, d, size=out * (4 * d) ** -0.5),
        }
    if config.encoding == "shaw":  # last, for the sake of all others
        for i in range(config.layers):
            for name in ("keys", "values"):
                table = normal(2 * config.clip + 1, config.head_dim, size=d**-0.5)
                weights[f"{i}/attention/relative_{name}"] = table
    return weights


def logits(config: Config, weights: Weights, tokens: Tensor) -> Tensor:
    """Return logits of the next token, (batch, tokens, characters), of tokens (batch, tokens)."""
    x = functional.embedding(tokens, weights["embedding"]) * math.sqrt(config.width)
    if config.encoding == "sinusoidal":
        places = torch.arange(tokens.shape[1])
        x = x + encodings.sinusoidal(places, config.width, dtype=x.dtype)
    for i in range(config.layers):
        own = {name[2:]: w for name, w in weights.items() if name.startswith(f"{i}/")}
        x = x + attend(config, own, norm(x, own["attention/norm"]))
        hidden = functional.gelu(norm(x, own["mlp/norm"]) @ own["mlp/in"])
        x = x + hidden @ own["mlp/out"]
    return norm(x, weights["norm"]) @ weights["embedding"].T


def attend(config: Config, weights: Weights, x: Tensor) -> Tensor:
    """Return what each token reads of itself and those before it."""
    batch, tokens, width = x.shape
    qkv = x @ weights["attention/qkv"]
    q, k, v = qkv.reshape(batch, tokens, 3, config.heads, config.head_dim).unbind(2)
    rope = ROPE if config.encoding == "rope" else None
    if config.attention == "linear":
        read = attention.linear_attention(q, k, v, rope=rope, causal=True)
    elif config.encoding == "shaw":
        keys, values = weights["attention/relative_keys"], weights["attention/relative_values"]
        scores = encodings.shaw(q, k, keys, scale=config.head_dim**-0.5)
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, -math.inf).softmax(-1)
        read = encodings.shaw_values(shares, v, values)
    else:
        read = attention.attention(q, k, v, rope=rope, causal=True)
    return read.reshape(batch, tokens, width) @ weights["attention/out"]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x with a root mean square of one over its components, times a weight for each."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
