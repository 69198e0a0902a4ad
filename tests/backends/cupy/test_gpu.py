"""cupy with a GPU: what only one can show. The whole matrix runs on it too, by its rows."""

import numpy as np
import pytest
from support.equality import LAYOUTS
from support.targets import numpy_dtype, truth

import rope_xp
from rope_xp import RoPE

cupy = pytest.importorskip("cupy")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cupy.is_available(), reason="cupy finds no GPU"),
]


def check(got, expected):
    np.testing.assert_array_equal(cupy.asnumpy(got), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_of_every_size_have_the_bits_of_numpy(dtype, layout, rng):
    """No multiply-add is fused and no small number taken for zero; in place as elsewhere."""
    shape, positions = (2, 130, 6, 128), rng.integers(-(1 << 31) + 1, 1 << 31, (2, 130))
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-44, 4, shape)).astype(np.float32)
    x = x.astype(numpy_dtype(dtype))
    rope = RoPE(layout=layout)
    expected, made = truth(rope.rotate, x, positions), cupy.asarray(x)
    with rope_xp.use_path("cuda"):
        check(rope.rotate(made, cupy.asarray(positions)), expected)
        check(rope.rotate(made, positions, out=made), expected)


def test_a_call_comes_after_earlier_work_of_its_stream(rng):
    x = rng.standard_normal((4096, 32, 128)).astype(np.float32)
    expected = RoPE().rotate(x)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)):
        with stream:
            made = cupy.zeros(x.shape, cupy.float32)
            for _ in range(20):  # work that a call on another stream would not wait for
                made += 1
            made.set(x)
            with rope_xp.use_path("cuda"):
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
    with rope_xp.use_path("cuda"):
        got = RoPE().rotate(x, axes=axes)
        few = cupy.ones((tokens, 1, 128), cupy.float16)
        expected = RoPE().rotate(few)[:, 0]
        RoPE().rotate(x, axes=axes, out=x)
    for result in (got, x):
        for head in (0, heads - 1):
            one = result[:, head] if axes == "shd" else result[head]
            assert bool((one == expected).all())
    del x, got
    cupy.get_default_memory_pool().free_all_blocks()


def test_each_array_is_rotated_on_its_own_device(rng):
    """Whichever is current."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU")
    x = rng.standard_normal((9, 4, 64)).astype(np.float32)
    expected = RoPE().rotate(x)
    for number in (0, 1, 0):
        with cupy.cuda.Device(number):
            made = cupy.asarray(x)
        with cupy.cuda.Device(1 - number), rope_xp.use_path("cuda"):
            got = RoPE().rotate(made)
        assert got.device.id == number
        with cupy.cuda.Device(number):
            check(got, expected)
