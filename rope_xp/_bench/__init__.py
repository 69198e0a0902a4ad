"""Inputs, clocks and formulas that ``python -m rope_xp bench`` and asv_benchmarks share.

Of rope_xp itself these modules use what every commit has had, as asv_benchmarks runs them over the
library of older commits too.
"""
