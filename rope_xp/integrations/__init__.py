"""Hand the rotation of other packages' models to rope_xp. Nothing here is imported by the core."""
