"""Frequencies are rounded if the module is cast to bfloat16

`inv_freq` is a buffer, so `module.to(torch.bfloat16)` rounds it, and angles are off.
`from_pretrained(dtype=torch.bfloat16)` keeps it in float32. Known: [transformers#25681](https://github.com/huggingface/transformers/issues/25681), closed.
"""

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

config = LlamaConfig(head_dim=64, hidden_size=256, num_attention_heads=4)
positions, x = torch.tensor([[4000]]), torch.zeros(1, dtype=torch.bfloat16)
exact = LlamaRotaryEmbedding(config)(x, positions)[0]
rounded = LlamaRotaryEmbedding(config).to(torch.bfloat16)(x, positions)[0]
print((exact - rounded).abs().max())  # prints 0.75; 0 is expected
