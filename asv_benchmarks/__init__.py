"""Benchmarks, run by asv. Each module measures one thing.

The folders are none of asv's: gpu/ and shared/ have no __init__.py, so that it does not
look for benchmarks in them.

asv runs the benchmarks of this tree over the library of any commit. What they share with
``python -m rope_xp bench`` lies in the library, so it is taken from this tree as well: a history is
measured by one rule.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

_NAME = "rope_xp._bench"
_FOLDER = Path(__file__).resolve().parent.parent / "rope_xp" / "_bench"

if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        _NAME, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    if _spec is None or _spec.loader is None:
        raise ImportError(_FOLDER)
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
