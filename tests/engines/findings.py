"""What was found: the script in faults/ that shows each wrong cell, and what was not run."""

FINDINGS = {
    ("curated-transformers", "module in bfloat16"): "table_in_bfloat16.py",
    ("equinox", "second base"): "base_in_cache.py",
    ("litgpt", "YaRN"): "yarn_ramp.py",
    ("rotary-embedding-torch", "bfloat16"): "positions_in_bfloat16.py",
    ("rotary-embedding-torch", "module in bfloat16"): "positions_in_bfloat16.py",
    ("torchtitan", "module in bfloat16"): "complex_table.py",
    ("transformers", "module in bfloat16"): "module_in_bfloat16.py",
    ("x-transformers", "module in bfloat16"): "positions_of_frequencies.py",
}
"""Scripts by package and column. Their docstrings are the page's text."""

NOT_RUN = {
    "executorch": "its Llama example could not be imported alone when this was measured",
    "ai2-olmo-core": "its imports need clients of cloud storage",
    "fairseq2": "needs fairseq2n, whose builds are for one version of torch",
    "flash-attn": "not on the package index; its Triton kernel is measured as vLLM's copy",
    "flashinfer-python": "kernels of CUDA",
    "flax": "no rotary embedding in 0.12.8",
    "ggml": "llama-cpp-python could not be built where this was measured",
    "levanter": "its layers of 1.1 need a newer haliax",
    "torchscale": "its rotation scales by position too (xPos), which no column measures",
    "tinygrad": "the package of 0.14.0 lacks tinygrad.llm.kernels, which its model imports",
    "transformer-engine": "imports its kernels of CUDA",
    "unsloth": "asks for a GPU when it is imported",
}
