"""Cos and sin as tables: made by kernels, and as other engines keep them."""
