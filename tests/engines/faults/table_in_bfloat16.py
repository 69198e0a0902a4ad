"""Longer tables are computed from rounded frequencies if the module is cast

`module.to(torch.bfloat16)` rounds `theta`, from which the table is made again for positions beyond its length: angles are
off, and positions above 256 coincide. Known: none found for this package; the same in
[transformers#25681](https://github.com/huggingface/transformers/issues/25681).
"""

import torch
from curated_transformers.layers import RotaryEmbeddings

x = torch.ones(1, 1, 600, 64)
exact = RotaryEmbeddings(64)(x)
rounded = RotaryEmbeddings(64).to(torch.bfloat16)(x.bfloat16()).float()
print((exact - rounded).abs().max())  # about 0.01 is expected, as of rounding x
