"""A model of transformers with exact angles, in two lines."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rope_xp.integrations.transformers import patch

# Yours comes from LlamaForCausalLM.from_pretrained(folder); this one is small.
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2_000_000,
    initializer_range=0.3,
)
model = LlamaForCausalLM(config).eval()

tokens = torch.randint(0, 64, (1, 16))
near, far = torch.arange(16)[None], 1_000_000 + torch.arange(16)[None]
with torch.no_grad():
    before = [model(tokens, position_ids=at).logits for at in (near, far)]
    model = patch(model)
    after = [model(tokens, position_ids=at).logits for at in (near, far)]
    generated = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)

# Attention depends only on relative positions: with exact angles, logits are the same anywhere.
moved, kept = ((here - there).abs().max() for here, there in (before, after))
print(f"a million tokens on: {moved:.0e} from the start unpatched, {kept:.0e} patched")
assert kept < 1e-3 < moved
assert generated.shape == (1, 20)
