"""What the package kernels imports of a repository: its layers."""

from rope_xp.integrations import kernels as layers

__all__ = ["layers"]
