"""Adapters import packages that tests do not have: they are no tests, and have no examples."""

from pathlib import Path

_FILES = Path(__file__).parent.glob("*.py")
collect_ignore = ["faults", *(p.name for p in _FILES if not p.name.startswith("test_"))]
