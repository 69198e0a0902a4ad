"""The ramp of YaRN runs the other way

YaRN divides the frequencies of slow pairs and keeps those of fast ones. `build_rope_cache` divides the fast ones and
keeps the slow ones: its `ramp_func` is 1 where YaRN's share of plain frequencies is 0. No report was found; YaRN came with
[litgpt#2202](https://github.com/Lightning-AI/litgpt/pull/2202).
"""

import torch
from litgpt.model import build_rope_cache

yarn = {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_seq_len": 4096}
cos, sin = build_rope_cache(2, 64, extra_config=yarn)
print(torch.atan2(sin[1, 0], cos[1, 0]))  # the fastest pair; prints 0.25, 1 radian is expected
