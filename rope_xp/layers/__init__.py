"""A RoPE as a module of torch, flax, equinox or keras. Nothing here is imported by the core."""
