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
    """Return the version of a library that is imported."""
    module = sys.modules.get(f"{name}.core") if name == "mlx" else None
    return str(getattr(module or sys.modules[name], "__version__", "unknown"))


def check_version(name: str) -> None:
    """Raise MissingBackendError where an imported library is older than the oldest tested.

    A build without a version is taken as it is.
    """
    version, lowest = find_version(name), LOWEST[name]
    if _parse(version) and _parse(version) < _parse(lowest):
        needed = f"rope_xp needs {lowest} or later (pip install -U {name})"
        msg = f"{name} {version} is installed; {needed}"
        raise MissingBackendError(msg)


def _parse(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
