"""Parts of :mod:`rope_xp.integrations.diffusers`: configurations, positions, tables, rotations."""
