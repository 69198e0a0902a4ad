"""A complex table loses its imaginary part if the module is cast

`ComplexRoPE.cache` is a complex buffer, and `module.to(torch.bfloat16)` makes it real, with a warning: vectors are
scaled by the cosine and not rotated. Its trainer keeps buffers in their dtype, so that only a cast by hand meets this.
Known: none found.
"""

import torch
from torchtitan.models.common.rope import ComplexRoPE

module = ComplexRoPE(ComplexRoPE.Config(dim=64, max_seq_len=8))
x = torch.ones(1, 8, 1, 64, dtype=torch.bfloat16)
print(module(x, x)[0][0, 1, 0, :2])  # cos(1) - sin(1), cos(1) + sin(1) are expected
module.to(torch.bfloat16)
print(module(x, x)[0][0, 1, 0, :2])
