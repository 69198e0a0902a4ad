"""Base layer: errors, numbers, the data of a call, and the protocols of libraries and paths."""
