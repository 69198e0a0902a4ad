"""The rotary embeddings of timm's vision transformers, by RoPE and positions of patches."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from rope_xp import RoPE, apply_frequencies, positions

HEIGHT, WIDTH, HEAD_DIM = 14, 12, 32
# Their angles are float32, of positions up to 16 and 2 pi.
CLOSE = 3e-6


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the one module of timm, without its package, which needs torchvision for others."""
    found = importlib.util.find_spec("timm")
    if found is None or found.origin is None:
        pytest.skip("timm is not installed; it brings torchvision, so the tests do not ask for it")
    folder = Path(found.origin).parent
    for name, path in (("timm", folder), ("timm.layers", folder / "layers")):
        package = ModuleType(name)
        package.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, name, package)
    return importlib.import_module("timm.layers.pos_embed_sincos")


def compare(module: Any, embedded: Any, rope: RoPE, at: np.ndarray) -> None:
    """Compare what rotates q behind a class token, which is left as it is."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 1 + HEIGHT * WIDTH, HEAD_DIM)).astype(np.float32)
    patches = torch.from_numpy(q[:, :, 1:])
    half = rope.layout == "half"
    expected = module.apply_rot_embed_cat(patches, embedded, half=half).numpy()
    class_token = positions.text(1, 2, along=())
    got = rope.rotate(q, np.concatenate([class_token, at], axis=1), axes="bhsd")
    np.testing.assert_array_equal(got[:, :, 0], q[:, :, 0])
    np.testing.assert_allclose(got[:, :, 1:], expected, rtol=0, atol=4 * CLOSE)


def test_eva(theirs: Any) -> None:
    """EVA-02 and the Perception Encoder: a grid stretched to the 16 x 16 patches of training."""
    module = theirs.RotaryEmbeddingCat(
        HEAD_DIM, in_pixels=False, feat_shape=[HEIGHT, WIDTH], ref_feat_shape=[16, 16]
    )
    at = positions.grid(HEIGHT, WIDTH, step=(16 / HEIGHT, 16 / WIDTH))
    rope = RoPE.axial((HEAD_DIM // 2, HEAD_DIM // 2))
    compare(theirs, module.get_embed(), rope, at)


def test_dinov3(theirs: Any) -> None:
    """DINOv3: the middles of patches from -1 to 1, a whole turn each."""
    module = theirs.RotaryEmbeddingDinoV3(HEAD_DIM, feat_shape=[HEIGHT, WIDTH])
    start, step = (-1 + 1 / HEIGHT, -1 + 1 / WIDTH), (2 / HEIGHT, 2 / WIDTH)
    at = 2 * np.pi * positions.grid(HEIGHT, WIDTH, start=start, step=step)
    rope = RoPE.axial((HEAD_DIM // 2, HEAD_DIM // 2), base=100.0, layout="half")
    compare(theirs, module.get_embed(), rope, at)


def test_rope_mixed(theirs: Any) -> None:
    """Heo et al. 2024: two learned components for each head of each block, columns first."""
    torch.manual_seed(0)
    rope = theirs.RotaryEmbeddingMixed(dim=64, depth=2, num_heads=4)
    tables = rope.get_embed([6, 5])
    rows, columns = positions.grid(6, 5)
    q = torch.randn(1, 4, 30, 16)
    for block in range(2):
        expected = theirs.apply_rot_embed_cat(q, tables[block])
        learned = rope.freqs[:, block]
        found, _ = apply_frequencies(
            q, q, [columns, rows], learned, layout="interleaved", axes="bhsd"
        )
        # Their angles are float32 sums of two products below 12.
        torch.testing.assert_close(found, expected, rtol=0, atol=4 * CLOSE)
    found.sum().backward()
    assert rope.freqs.grad[:, 1].abs().min() > 0
