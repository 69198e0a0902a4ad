"""What a rotary embedding does to scores over distance, in numpy float64. Optional.

A distance is the position of the query less that of the key, in tokens. Where positions have
several components, all of them are taken to differ by it, as between two tokens of a text. Angles
are float64 products, off by ``distance * frequency * 2**-52`` at most, with what
the frequency is rounded by.
"""

from rope_xp.analysis._curves import decay_bound, max_distance, score_curve, turns

__all__ = ["decay_bound", "max_distance", "score_curve", "turns"]
