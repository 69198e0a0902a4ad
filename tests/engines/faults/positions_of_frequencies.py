"""Positions take the dtype of the frequencies if the module is cast

`module.to(torch.bfloat16)` rounds `inv_freq`, and `forward` computes positions and angles in its dtype. bfloat16 has no
257: from there on, tokens share positions.
"""

import torch
from x_transformers.x_transformers import RotaryEmbedding

exact = RotaryEmbedding(64).forward_from_seq_len(600)[0]
rounded = RotaryEmbedding(64).to(torch.bfloat16).forward_from_seq_len(600)[0]
print((exact - rounded).abs().max())  # prints 2.21 radians; 0 is expected
