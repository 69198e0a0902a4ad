"""Positions are computed in the dtype of x

`rotate_queries_or_keys` counts positions in the dtype of its argument. bfloat16 has no 257: from there on, tokens share
positions. With q and k in float32 results are right, and after such a call, which fills the module's cache, those of
bfloat16 too. It was tried without the cache.
"""

import torch
from rotary_embedding_torch import RotaryEmbedding

x = torch.ones(1, 1, 600, 64)
module = RotaryEmbedding(64, cache_if_possible=False)
exact = module.rotate_queries_or_keys(x)
rounded = module.rotate_queries_or_keys(x.bfloat16()).float()
print((exact - rounded).abs().max())  # prints 2.38; about 0.01 is expected, as of rounding x
