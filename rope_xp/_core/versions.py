"""The oldest tested version of each library. Nothing is said of newer ones."""

import re
import sys

from rope_xp._core.errors import MissingBackendError

LOWEST = {
    "numpy": "2.0",
    "torch": "2.6",
    "jax": "0.4.38",
    "cupy": "14.0",
    "mlx": "0.29",
    "ndonnx": "0.23",
    "dask": "2025.1",
    "transformers": "4.48",
}


def find_version(name: str) -> str:
    module = sys.modules.get(f"{name}.core") if name == "mlx" else None
    return str(getattr(module or sys.modules[name], "__version__", "unknown"))


def check_version(name: str) -> None:
    """Raise where an imported library has a version, and it is older than the oldest tested."""
    version, lowest = find_version(name), LOWEST[name]
    installed, needed = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (version, lowest))
    if installed and installed < needed:
        advice = f"rope_xp needs {lowest} or later (pip install -U {name})"
        raise MissingBackendError(f"{name} {version} is installed; {advice}")
