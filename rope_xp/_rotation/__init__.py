"""The rotation in the plain array API: frequencies, tables, angles, pairs. The specification."""
