"""What is measured, and beside what: for ``python -m rope_xp bench`` and for asv_benchmarks alike.

Of rope_xp itself these modules use what every commit has had, as asv_benchmarks runs them over the
library of older commits too.
"""
