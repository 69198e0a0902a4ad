"""Positions of patches as image and video models number them, each spelled out in plain loops."""

import numpy as np
import pytest

from rope_xp import RoPE, positions


def cells(lines: list[list[float]]) -> list[list[float]]:
    """Return the components of all cells of a grid of such lines, the last axis fastest."""
    points: list[tuple[float, ...]] = [()]
    for line in lines:
        points = [(*point, value) for point in points for value in line]
    return [list(component) for component in zip(*points, strict=True)]


def test_video_at_a_frame_rate_equals_cosmos():
    # Cosmos: the frame in units of 1/24 s of a video of 16 frames a second.
    expected = cells([[i / 16 * 24 for i in range(5)], [0, 1], [0, 1, 2]])
    result = positions.video(5, 2, 3, step=(24 / 16, 1, 1))
    np.testing.assert_allclose(result, expected, rtol=1e-15)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 3), (1, 1)])
def test_grids_counted_from_the_middle_equal_qwen_image(height, width):
    # Qwen-Image: negative rows first, one more than of the others where their number is odd.
    rows, columns = ([*range(-(n - n // 2), 0), *range(n // 2)] for n in (height, width))
    result = positions.video(1, height, width, start=(2, 0, 0), centre=True)
    assert result.dtype == np.int64
    assert result.tolist() == cells([[2], rows, columns])
    assert positions.grid(height, width, centre=True).tolist() == result[1:].tolist()


def test_a_stretched_grid_equals_cogvideox():
    # CogVideoX: rows spaced evenly from the top of a crop, its bottom left out.
    top, left, bottom, right = 3, 5, 33, 50
    rows = np.linspace(top, bottom * 9 / 10, 10).tolist()
    columns = np.linspace(left, right * 14 / 15, 15).tolist()
    step = ((bottom * 9 / 10 - top) / 9, (right * 14 / 15 - left) / 14)
    result = positions.video(2, 10, 15, start=(0, top, left), step=(1, *step))
    np.testing.assert_allclose(result, cells([[0, 1], rows, columns]), rtol=1e-14)


def test_middles_of_patches_equal_dinov3():
    # The middles of patches, from -1 to 1.
    rows, columns = ([2 * (i + 0.5) / n - 1 for i in range(n)] for n in (4, 6))
    result = positions.grid(4, 6, start=(-1 + 1 / 4, -1 + 1 / 6), step=(2 / 4, 2 / 6))
    np.testing.assert_allclose(result, cells([rows, columns]), atol=1e-15)


def test_text_beside_an_image_equals_z_image_and_qwen_image():
    # Z-Image: a caption counts frames from 1, the image lies in the frame behind it.
    caption = positions.text(3, 3, start=(1, 0, 0), along=(0,))
    image = positions.video(1, 2, 2, start=(4, 0, 0))
    both = np.concatenate([caption, image], axis=1)
    assert both.tolist() == [[1, 2, 3, 4, 4, 4, 4], [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 0, 1]]
    # Qwen-Image: all components of the text go on.
    assert positions.text(2, 3, start=5).tolist() == [[5, 6]] * 3
    assert positions.text(4, 2, along=()).tolist() == [[0] * 4] * 2
    assert positions.text(0, 2).shape == (2, 0)


def test_fractions_of_other_libraries_are_float32():
    torch = pytest.importorskip("torch")
    result = positions.grid(2, 2, step=0.5, xp=torch)
    assert result.dtype == torch.float32
    assert result.tolist() == positions.grid(2, 2, step=0.5).tolist()


def test_a_grid_of_eva_02_gives_its_angles():
    """A grid stretched to 16 by 16, as docs/diffusion.md has it."""
    at = positions.grid(3, 4, step=(16 / 3, 16 / 4))
    w = 10000.0 ** -(np.arange(8) / 8)
    angles = np.concatenate([at[0][:, None] * w, at[1][:, None] * w], axis=1)
    cos, _ = RoPE.axial((16, 16)).cos_sin(at, 32, dtype=np.float64)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-13)
