"""Inference of a GPT-NeoX layer in numpy: RoPE on the first quarter of each head."""

import math

import numpy as np

import rope_xp

ERF = np.vectorize(math.erf, otypes=[np.float32])


def norm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def gelu(x):
    return 0.5 * x * (1.0 + ERF(x / math.sqrt(2.0)))


def attend(q, k, v):
    """Causal attention; (batch, tokens, heads, head_dim), where k may begin before q."""
    scores = np.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[-1])
    tokens, keys = scores.shape[-2:]
    scores += np.triu(np.full((tokens, keys), -np.inf, np.float32), 1 + keys - tokens)
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhst,bthd->bshd", chances / chances.sum(-1, keepdims=True), v)


def layer(x, weights, rope, heads, cache=None):
    """Return the output of a layer, and its keys and values, which are the next call's cache."""
    normed = norm(x, weights, "input_layernorm")
    fused = linear(normed, weights, "attention.query_key_value")
    q, k, v = np.split(fused.reshape(*x.shape[:2], heads, -1), 3, axis=-1)
    past = 0 if cache is None else cache[0].shape[1]
    q, k = rope.apply(q, k, past + np.arange(x.shape[1]))  # views are not copied
    if cache is not None:
        k, v = (np.concatenate(pair, axis=1) for pair in zip(cache, (k, v), strict=True))
    attended = linear(attend(q, k, v).reshape(x.shape), weights, "attention.dense")
    hidden = linear(norm(x, weights, "post_attention_layernorm"), weights, "mlp.dense_h_to_4h")
    return x + attended + linear(gelu(hidden), weights, "mlp.dense_4h_to_h"), (k, v)


CONFIG = {
    "model_type": "gpt_neox",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "rotary_pct": 0.25,  # the first 8 of 32 components
    "rotary_emb_base": 10_000,
}


def random_weights(dim, rng):
    shapes = {
        "input_layernorm": (dim,),
        "post_attention_layernorm": (dim,),
        "attention.query_key_value": (3 * dim, dim),
        "attention.dense": (dim, dim),
        "mlp.dense_h_to_4h": (4 * dim, dim),
        "mlp.dense_4h_to_h": (dim, 4 * dim),
    }
    weights = {}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = rng.normal(0, 0.1, shape).astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, shape[0]).astype(np.float32)
    return weights


def main():
    rng = np.random.default_rng(0)
    rope = rope_xp.from_hf_config(CONFIG)
    weights = random_weights(128, rng)
    x = rng.standard_normal((1, 9, 128), dtype=np.float32)
    whole, _ = layer(x, weights, rope, heads=4)
    first, cache = layer(x[:, :8], weights, rope, heads=4)
    last, _ = layer(x[:, 8:], weights, rope, heads=4, cache=cache)
    parts = np.concatenate([first, last], axis=1)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)
    print(f"{rope}\n8 tokens and then one: {abs(parts - whole).max():.0e} from all at once")


if __name__ == "__main__":
    main()
