"""From an array to its backend, and from a call to the path that runs it."""
