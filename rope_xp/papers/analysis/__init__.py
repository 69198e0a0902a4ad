"""What a rotary embedding does to scores over distance, in numpy float64.

A distance is the position of the query less that of the key, in tokens. Where positions have
several components, all of them are taken to differ by it, as between two tokens of a text. Angles
are float64 products, off by ``distance * frequency * 2**-52`` at most, with what
the frequency is rounded by. All functions raise RopeError where a value is out of range or not
finite, and as :meth:`rope_xp.RoPE.frequencies`; TypeError where an argument is no number.
"""

from rope_xp.papers.analysis._curves import decay_bound, max_distance, score_curve, turns

__all__ = ["decay_bound", "max_distance", "score_curve", "turns"]
