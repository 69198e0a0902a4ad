"""Positions are computed in the dtype of x

`rotate_queries_or_keys` counts positions in the dtype of its argument. bfloat16 has no 257: from there on, tokens share
positions. Cast q and k to float32 before, or pass them so. Known: none found for this package; the same in
[gpt-neox#1003](https://github.com/EleutherAI/gpt-neox/issues/1003).
"""

import torch
from rotary_embedding_torch import RotaryEmbedding

x = torch.ones(1, 1, 600, 64)
module = RotaryEmbedding(64, cache_if_possible=False)
exact = module.rotate_queries_or_keys(x)
rounded = module.rotate_queries_or_keys(x.bfloat16()).float()
print((exact - rounded).abs().max())  # about 0.01 is expected, as of rounding x
