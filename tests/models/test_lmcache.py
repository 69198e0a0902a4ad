"""docs/examples/lmcache_rope.py beside LMCache's own class, where that can rotate."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import lmcache_rope  # noqa: E402  # imports torch

import rope_xp  # noqa: E402  # after what may be missing
from rope_xp.scaling import YaRN  # noqa: E402  # after what may be missing

OLD, NEW = torch.arange(3, 23), torch.arange(900, 920)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Their module, with their kernel for the CPU, and without vLLM, which it only calls later."""
    spec = importlib.util.find_spec("lmcache")
    if spec is None or spec.origin is None:
        pytest.skip("lmcache is not installed")
    folder = Path(spec.origin).parent / "v1"
    kernel = load(folder / "platform/torch_ops/pos_kernels.py")
    names = ["vllm", "vllm.model_executor", "vllm.model_executor.layers"]
    for name in [*names, "vllm.model_executor.layers.rotary_embedding", "lmcache.logging"]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["vllm.model_executor.layers.rotary_embedding"])["get_rope"] = None
    vars(sys.modules["lmcache.logging"])["init_logger"] = lambda _: None
    package = ModuleType("lmcache")
    vars(package).update(device_ops=kernel, torch_device_type="cpu")
    monkeypatch.setitem(sys.modules, "lmcache", package)
    return load(folder / "compute/positional_encoding.py")


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_both_move_keys_of_full_rotation(theirs: Any, layout: str) -> None:
    rope = rope_xp.RoPE(layout=layout)
    table = rope.table(1024, 64, form="vllm", xp=torch)
    own = theirs.FusedRope(SimpleNamespace(head_size=64, cos_sin_cache=table), layout == "half")
    raw = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(0))
    keys = rope.rotate(raw, OLD).flatten(1)
    first = own(OLD, NEW, keys.clone())
    torch.testing.assert_close(lmcache_rope.FusedRope(rope, 64)(OLD, NEW, keys), first)


@pytest.mark.parametrize(
    "rope",
    [
        rope_xp.RoPE(layout="half", rotary_dim=32),
        rope_xp.RoPE(layout="half", scaling=YaRN(4.0, original_max_position_embeddings=64)),
        rope_xp.RoPE(rotary_dim=16, rotary_offset=-16),
    ],
)
def test_ropes_that_lmcache_refuses_move_too(rope: rope_xp.RoPE) -> None:
    raw = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(0))
    moved = lmcache_rope.FusedRope(rope, 64)(OLD, NEW, rope.rotate(raw, OLD).flatten(1))
    torch.testing.assert_close(moved, rope.rotate(raw, NEW).flatten(1))
