"""From here on ``python -m rope_xp`` ignores the current folder, which Python puts first."""

import sys

# While its package is imported, Python has no other first argument than this.
if sys.argv[:1] == ["-m"] and "-mrope_xp" in "".join(sys.orig_argv) and not sys.flags.safe_path:
    del sys.path[0]
