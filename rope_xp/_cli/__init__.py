"""The commands of ``python -m rope_xp``, one module each, and what they share."""
