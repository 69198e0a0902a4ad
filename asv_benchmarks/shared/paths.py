"""The path of calls, chosen by the name that a commit's own rope_xp has for it."""

from __future__ import annotations

import rope_xp

use_path = getattr(rope_xp, "use_path", None) or rope_xp.use_backend
