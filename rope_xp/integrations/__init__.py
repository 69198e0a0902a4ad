"""Hand the rotation of other packages' models to rope_xp. Nothing here is imported by the core."""

from rope_xp.integrations._drop_in import apply_rotary_transformers

__all__ = ["apply_rotary_transformers"]
