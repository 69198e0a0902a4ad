"""Replace the rotation of other packages' models by rope_xp's. The core imports none of this."""

from rope_xp.integrations._drop_in import apply_rotary_transformers

__all__ = ["apply_rotary_transformers"]
