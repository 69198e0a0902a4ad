"""Functions of the papers around RoPE, in plain array API. The rotation itself needs none of them.

- :mod:`rope_xp.papers.attention`: softmax and linear attention with rotated queries and keys
- :mod:`rope_xp.papers.encodings`: the position encodings that RoFormer compares RoPE with
- :mod:`rope_xp.papers.analysis`: scores over distance, in numpy
"""
