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
