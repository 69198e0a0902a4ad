"""What :mod:`rope_xp.integrations.diffusers` is made of: models, positions, patching."""
