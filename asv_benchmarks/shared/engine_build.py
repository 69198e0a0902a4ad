"""Build engine.cpp, the rotation of engines for inference, for this processor."""

import functools
import importlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any

from rope_xp._bench.inputs import CannotMeasure


@functools.cache
def operator() -> Any:
    """Return the operator, (q, k, positions, cache, interleaved), or raise CannotMeasure."""
    if importlib.util.find_spec("ninja") is None:
        raise CannotMeasure("ninja is not installed")
    if shutil.which("c++") is None:
        raise CannotMeasure("there is no compiler for C++")
    torch = importlib.import_module("torch")
    importlib.import_module("torch.utils.cpp_extension").load(
        "rope_xp_engine",
        [str(Path(__file__).with_name("engine.cpp"))],
        extra_cflags=["-O3", "-march=native"],
        is_python_module=False,
    )
    return torch.ops.rope_xp_engine.rope.default
