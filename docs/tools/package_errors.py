"""Measure cos and sin of other packages against mpmath.

For every package that is installed, the largest error of any cos or sin among 256 consecutive
positions and all pairs of a head of 128 components, base 10000, float32, as its own code has it.
torchtune and keras-hub are read file by file where they lie on the path, as ``pip install
--no-deps`` leaves them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import rope_xp

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_table import BASE, COUNT, HEAD_DIM, find_largest_error
from measured_group import Rows

ENDS = {"4k": 2**12, "128k": 2**17, "1M": 2**20}
"""Name of each block of positions, and the position that follows its last one."""

Tables = Callable[[int], tuple[Any, Any]]
"""From the end of a block to its cos and sin, (COUNT, HEAD_DIM / 2)."""


def of_rope_xp() -> Tables:
    import torch

    rope = rope_xp.RoPE(base=BASE)
    return lambda end: rope.cos_sin(torch.arange(end - COUNT, end), HEAD_DIM)


def of_transformers() -> Tables:
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "default", "rope_theta": BASE}
    made = LlamaRotaryEmbedding(LlamaConfig(head_dim=HEAD_DIM, rope_parameters=parameters))

    def tables(end: int) -> tuple[Any, Any]:
        cos, sin = made(torch.ones(1), torch.arange(end - COUNT, end)[None])
        return cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]

    return tables


def of_rotary_embedding_torch() -> Tables:
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    made = RotaryEmbedding(HEAD_DIM, theta=BASE)
    ones = torch.tensor([1.0, 0.0]).tile(1, 1, COUNT, HEAD_DIM // 2)

    def tables(end: int) -> tuple[Any, Any]:
        turned = made.rotate_queries_or_keys(ones, offset=end - COUNT)[0, 0].detach()
        return turned[:, ::2], turned[:, 1::2]

    return tables


def of_equinox() -> Tables:
    import jax.numpy as jnp
    from equinox.nn import RotaryPositionalEmbedding

    def tables(end: int) -> tuple[Any, Any]:
        made = RotaryPositionalEmbedding.precompute_freqs_cis(HEAD_DIM, end, BASE, jnp.float32)
        return made[0][-COUNT:], made[1][-COUNT:]

    return tables


def of_mlx() -> Tables:
    import mlx.core as mx

    ones = mx.array(np.tile(np.float32([1.0, 0.0]), (1, 1, COUNT, HEAD_DIM // 2)))

    def tables(end: int) -> tuple[Any, Any]:
        rotated = np.asarray(
            mx.fast.rope(ones, HEAD_DIM, traditional=True, base=BASE, scale=1.0, offset=end - COUNT)
        )[0, 0]
        return rotated[:, ::2], rotated[:, 1::2]

    return tables


def of_torchtune() -> Tables:
    import torch

    module = _file("torchtune", "modules/position_embeddings.py")

    def tables(end: int) -> tuple[Any, Any]:
        made = module.RotaryPositionalEmbeddings(HEAD_DIM, max_seq_len=end, base=int(BASE))
        ones = torch.tensor([1.0, 0.0]).tile(1, COUNT, 1, HEAD_DIM // 2)
        turned = made(ones, input_pos=torch.arange(end - COUNT, end)[None])[0, :, 0]
        return turned[:, ::2], turned[:, 1::2]

    return tables


def of_keras_hub() -> Tables:
    export = ModuleType("keras_hub.src.api_export")
    export.keras_hub_export = lambda _: lambda made: made  # type: ignore[attr-defined]  # a module made here
    sys.modules.setdefault("keras_hub.src.api_export", export)
    made = _file("keras_hub", "src/layers/modeling/rotary_embedding.py").RotaryEmbedding()
    halves = np.repeat([1.0, 0.0], HEAD_DIM // 2).astype(np.float32)
    ones = np.tile(halves, (1, COUNT, 1, 1))

    def tables(end: int) -> tuple[Any, Any]:
        turned = np.asarray(made(ones, start_index=end - COUNT))[0, :, 0]
        return turned[:, : HEAD_DIM // 2], turned[:, HEAD_DIM // 2 :]

    return tables


PACKAGES: dict[str, tuple[str, Callable[[], Tables]]] = {
    "transformers": ("transformers", of_transformers),
    "rotary-embedding-torch": ("rotary_embedding_torch", of_rotary_embedding_torch),
    "torchtune": ("torchtune", of_torchtune),
    "keras-hub": ("keras_hub", of_keras_hub),
    "equinox": ("equinox", of_equinox),
    "mlx": ("mlx", of_mlx),
    "rope-xp": ("torch", of_rope_xp),
}
"""Name, the module that must be there, and what makes its tables."""


def _file(package: str, path: str) -> ModuleType:
    """Return a module of a package whose other modules may not import here."""
    found = importlib.util.find_spec(package)
    (folder,) = (found and found.submodule_search_locations) or [""]
    spec = importlib.util.spec_from_file_location(f"{package}_alone", Path(folder) / path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed() -> list[str]:
    """Return the names of packages that are here."""
    return [name for name, (module, _) in PACKAGES.items() if importlib.util.find_spec(module)]


def name_version(name: str) -> str:
    """Return a package and its version; ours is that of this repository."""
    return name if name == "rope-xp" else f"{name} {importlib.metadata.version(name)}"


def rows() -> Rows:
    """Return the errors of every package that is installed."""
    found: Rows = {}
    for name in installed():
        tables = PACKAGES[name][1]()
        found[name_version(name)] = {
            block: find_largest_error(tables(end), end) for block, end in ENDS.items()
        }
    return found
