"""Parts of :func:`rope_xp.from_hf_config`: keys, rules, slices, and a row for each model type."""
