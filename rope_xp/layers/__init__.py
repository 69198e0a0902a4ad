"""Modules for torch, flax, equinox and keras that rotate by a RoPE. The core imports none."""
