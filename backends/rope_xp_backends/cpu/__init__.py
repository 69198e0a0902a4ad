"""From a call to compiled kernels on CPU memory, for numpy and torch."""
