"""Test a function of C++ that takes what vLLM's operator takes."""

import ctypes
import subprocess
from pathlib import Path

import pytest

import rope_xp
from rope_xp.testing import assert_rotates, conventions

SOURCE = Path(__file__).with_name("rotate.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "rotate.so"
    subprocess.run(["c++", "-O2", "-shared", "-fPIC", SOURCE, "-o", path], check=True)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize(
    "rope",
    [
        rope_xp.RoPE(layout="half", base=500000.0),
        rope_xp.RoPE(layout="half", rotary_dim=32),
        rope_xp.RoPE(layout="half", scaling=rope_xp.scaling.YaRN(4.0, 4096)),
    ],
)
def test_rotate(library, rope):
    def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
        assert is_neox
        for x in (query, key):
            addresses = (ctypes.c_void_p(t.data_ptr()) for t in (x, cos_sin_cache, positions))
            sizes = len(x), x.shape[1] // head_size, head_size, cos_sin_cache.shape[1]
            library.rotate(*addresses, *sizes)

    assert_rotates(conventions.vllm(rotary_embedding, rope, 64), rope, 64)
