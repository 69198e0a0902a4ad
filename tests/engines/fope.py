"""vLLM's class of FoPE next to apply_tables. Needs vLLM's files, and exits with 1 if they differ."""

import sys

import kernels
import torch
from shared import load_alone

import rope_xp

TOKENS, HEADS, KV_HEADS, DIM = 50, 8, 2, 64


def compare(kept: int) -> float:
    """Return the largest difference of rotated q and k, with ``kept`` frequencies."""
    kernels.load_vllm()
    distributed = {"get_tensor_model_parallel_rank": lambda: 0,
                   "get_tensor_model_parallel_world_size": lambda: 1}  # fmt: skip
    name = "vllm.model_executor.layers.rotary_embedding.fope"
    kind = load_alone(name, vllm__distributed=distributed).FourierRotaryEmbedding
    module = kind(DIM, DIM, 4096, 1e4, True, torch.float32, False, num_key_value_heads=KV_HEADS,
                  num_inv_freq=kept, fope_sep_head=True, fope_init_factor=0.5)  # fmt: skip
    for coefficients in (module.cos_coef, module.sin_coef):
        torch.nn.init.normal_(coefficients)
    positions = torch.arange(TOKENS) * 80
    q, k = torch.randn(TOKENS, HEADS, DIM), torch.randn(TOKENS, KV_HEADS, DIM)
    expected = module.forward_native(positions, q.flatten(1), k.flatten(1))
    cos, sin = module.cos_sin_cache[positions].chunk(2, -1)
    if kept == DIM // 2:  # as of 0.33.0 the class pads the sine of other pairs with 1
        angles = positions[:, None].float() * module.inv_freq
        cos = torch.einsum("tD,hDd->thd", angles.cos(), module.cos_coef)
        sin = torch.einsum("tD,hDd->thd", angles.sin(), module.sin_coef)
    cos, sin = cos[None, ..., : DIM // 2], sin[None, ..., : DIM // 2]
    rotated = (rope_xp.apply_tables(x[None], cos, sin, layout="half")[0] for x in (q, k))
    return max(float((x - y).abs().max()) for x, y in zip(rotated, expected, strict=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    differences = [compare(kept) for kept in (DIM // 2, 20)]
    print("fope: largest differences", *differences)
    # Sums of products of normal numbers and tables up to 30, each rounded to float32.
    sys.exit(max(differences) > 2e-5)
