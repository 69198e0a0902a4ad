"""RoPE in a decoder layer of jax, under jit and grad."""

import jax
import jax.numpy as jnp

import rope_xp

# Hashable and without arrays: a plain constant of what is compiled.
ROPE = rope_xp.RoPE(base=500_000.0, layout="half")


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def layer(weights, x, positions):
    q, k, v = (jnp.einsum("bsm,mhd->bshd", norm(x), weights[name]) for name in "qkv")
    q, k = ROPE.apply(q, k, positions)  # (batch, tokens, heads, head_dim)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # fewer heads in k, v
    x = x + jnp.einsum("bshd,hdm->bsm", y, weights["out"])
    return x + jax.nn.silu(norm(x) @ weights["up"]) @ weights["down"]


@jax.jit
def step(weights, x, positions):
    """Return the loss and its gradients."""

    def loss(weights):
        return jnp.mean(layer(weights, x, positions) ** 2)

    return jax.value_and_grad(loss)(weights)


def initial(key, dim=64, heads=4, kv_heads=2, head_dim=16):
    shapes = {
        "q": (dim, heads, head_dim),
        "k": (dim, kv_heads, head_dim),
        "v": (dim, kv_heads, head_dim),
        "out": (heads, head_dim, dim),
        "up": (dim, 4 * dim),
        "down": (4 * dim, dim),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(each, shape) / dim**0.5
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def main():
    weights = initial(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (2, 16, 64))
    positions = 1_000_000 + jnp.arange(16)  # traced: other positions compile nothing anew
    before, gradients = step(weights, x, positions)
    weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
    after, _ = step(weights, x, positions)
    assert after < before
    print(f"loss before a step {before:.4f}, after it {after:.4f}")


if __name__ == "__main__":
    main()
