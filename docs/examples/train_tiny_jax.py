"""The model of train_tiny.py in plain jax: the same weights give the same logits.

    python docs/examples/train_tiny.py --save weights.npz
    python docs/examples/train_tiny_jax.py weights.npz

Prints, for each model in the file, how far the logits of jax lie from those that torch saved. This
needs no torch. rope_xp is called as in tiny_model.py, word for word.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from tiny_shared import Config, load

from rope_xp import RoPE
from rope_xp._cli import terminal
from rope_xp.papers import attention, encodings

Weights = dict[str, jax.Array]
ROPE = RoPE()


@partial(jax.jit, static_argnums=0)
def logits(config: Config, weights: Weights, tokens: jax.Array) -> jax.Array:
    """Return logits of the next token, (batch, tokens, characters), of tokens (batch, tokens)."""
    x = weights["embedding"][tokens] * math.sqrt(config.width)
    if config.encoding == "sinusoidal":
        places = jnp.arange(tokens.shape[1])
        x = x + encodings.sinusoidal(places, config.width, dtype=x.dtype)
    for i in range(config.layers):
        own = {name[2:]: w for name, w in weights.items() if name.startswith(f"{i}/")}
        x = x + attend(config, own, norm(x, own["attention/norm"]))
        hidden = jax.nn.gelu(norm(x, own["mlp/norm"]) @ own["mlp/in"], approximate=False)
        x = x + hidden @ own["mlp/out"]
    return norm(x, weights["norm"]) @ weights["embedding"].T


def attend(config: Config, weights: Weights, x: jax.Array) -> jax.Array:
    """Return what each token reads of itself and those before it."""
    batch, tokens, width = x.shape
    qkv = x @ weights["attention/qkv"]
    q, k, v = jnp.moveaxis(qkv.reshape(batch, tokens, 3, config.heads, config.head_dim), 2, 0)
    rope = ROPE if config.encoding == "rope" else None
    if config.attention == "linear":
        read = attention.linear_attention(q, k, v, rope=rope, causal=True)
    elif config.encoding == "shaw":
        keys, values = weights["attention/relative_keys"], weights["attention/relative_values"]
        scores = encodings.shaw(q, k, keys, scale=config.head_dim**-0.5)
        earlier = jnp.tri(tokens, dtype=bool)
        shares = jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf), -1)
        read = encodings.shaw_values(shares, v, values)
    else:
        read = attention.attention(q, k, v, rope=rope, causal=True)
    return read.reshape(batch, tokens, width) @ weights["attention/out"]


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Return x with a root mean square of one over its components, times a weight for each."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * weight


def main(path: Path) -> None:
    """Compare the logits of every model in a file with those in it."""
    jax.config.update("jax_default_matmul_precision", "float32")  # GPUs and TPUs would take fewer
    rows = []
    for run in load(path):
        weights = {name: jnp.asarray(w) for name, w in run.weights.items()}
        difference = jnp.abs(logits(run.config, weights, jnp.asarray(run.tokens)) - run.logits)
        largest = abs(run.logits).max()
        numbers = (str(run.seed), f"{largest:.1f}", f"{difference.max():.2e}")
        rows.append((run.config.attention, run.config.encoding, *numbers))
    columns = ("attention", "positions", "seed", "largest logit", "largest difference")
    terminal.table(columns, rows, text_columns=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
