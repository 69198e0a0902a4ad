"""What was found: the script in faults/ that shows each wrong cell, and what was not run."""

FINDINGS = {
    ("equinox", "second base"): "base_in_cache.py",
    ("litgpt", "YaRN"): "yarn_ramp.py",
    ("rotary-embedding-torch", "bfloat16"): "positions_in_bfloat16.py",
    ("rotary-embedding-torch", "module in bfloat16"): "positions_in_bfloat16.py",
    ("transformers", "module in bfloat16"): "module_in_bfloat16.py",
    ("x-transformers", "module in bfloat16"): "positions_of_frequencies.py",
}
"""Scripts by package and column. Their docstrings are the page's text."""

_UNFINISHED = "its adapter was not run to its end"
NOT_RUN = {
    "ai2-olmo-core": _UNFINISHED,
    "comfy-kitchen": _UNFINISHED,
    "executorch": _UNFINISHED,
    "fairseq2": "needs fairseq2n, which was not installed",
    "flash-attn": "its Triton kernel is measured as vLLM's copy",
    "flash-linear-attention": _UNFINISHED,
    "flashinfer-python": "not tried: its kernels are for GPUs",
    "flax": "no rotary embedding was found in 0.12.8",
    "ggml": "the build of llama-cpp-python was not seen to end",
    "levanter": "its import stopped at `mergedeep`, which was not installed then",
    "lmdeploy": _UNFINISHED,
    "tinygrad": "the package of 0.14.0 lacks `tinygrad.llm.kernels`, which its model imports",
    "torchscale": "not tried: it also scales by position (xPos), which no column measures",
    "transformer-engine": "not tried: its kernels are for GPUs",
    "unsloth": "not tried: it trains on GPUs",
    "xformers": _UNFINISHED,
}
