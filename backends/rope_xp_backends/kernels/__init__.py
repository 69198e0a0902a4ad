"""Kernels alone: how a compiler is told to look angles up and rotate. Glue is one level up."""
