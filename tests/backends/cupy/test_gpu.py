"""cupy with a GPU: what only one can show. tests/backends/triton/test_kernel.py runs on it too."""

import numpy as np
import pytest
from support.targets import truth

import rope_xp
from rope_xp import RoPE

cupy = pytest.importorskip("cupy")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cupy.is_available(), reason="cupy finds no GPU"),
]


@pytest.fixture(autouse=True)
def _by_the_kernel():
    with rope_xp.use_path("cuda"):
        yield


def check(got, expected):
    np.testing.assert_array_equal(cupy.asnumpy(got), expected)


def test_a_call_comes_after_earlier_work_of_its_stream(rng):
    x = rng.standard_normal((4096, 32, 128)).astype(np.float32)
    expected = truth(RoPE().rotate, x)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)):
        with stream:
            made = cupy.zeros(x.shape, cupy.float32)
            for _ in range(20):  # work that a call on another stream would not wait for
                made += 1
            made.set(x)
            got = RoPE().rotate(made)
            stream.synchronize()
            check(got, expected)


@pytest.mark.unsanitized  # it would take minutes
@pytest.mark.parametrize("axes", ["shd", "hsd"])
def test_more_elements_than_32_bits_count_are_rotated(axes):
    """2**31 + 2**24 of them, and bytes beyond 2**32: the last and the first are turned alike."""
    heads, tokens = 129, (1 << 31) // (128 * 128)
    shape = (tokens, heads, 128) if axes == "shd" else (heads, tokens, 128)
    if cupy.cuda.Device().mem_info[0] < 3 * 2 * np.prod(shape, dtype=np.int64):
        pytest.skip("the GPU has too little memory left")
    x = cupy.ones(shape, cupy.float16)
    assert x.size > 1 << 31
    expected = RoPE().rotate(cupy.ones((tokens, 1, 128), cupy.float16))[:, 0]
    for result in (RoPE().rotate(x, axes=axes), RoPE().rotate(x, axes=axes, out=x)):
        for head in (0, heads - 1):
            assert bool((result.take(head, axis=axes.index("h")) == expected).all())
    del x, result
    cupy.get_default_memory_pool().free_all_blocks()


def test_each_array_is_rotated_on_its_own_device(rng):
    """Whichever is current."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU")
    x = rng.standard_normal((9, 4, 64)).astype(np.float32)
    for number in (0, 1, 0):
        with cupy.cuda.Device(number):
            made = cupy.asarray(x)
        with cupy.cuda.Device(1 - number):
            got = RoPE().rotate(made)
        assert got.device.id == number
        with cupy.cuda.Device(number):
            check(got, truth(RoPE().rotate, x))
