"""RIFLEx changes one frequency of one axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rope_xp import RopeError
from rope_xp.scaling import Axial, RIFLEx


def reference(dim: int, base: float, k: int, length: int) -> list[float]:
    """Return the frequencies of the paper's code for frames, spelled out."""
    frequencies = [base ** (-2 * i / dim) for i in range(dim // 2)]
    frequencies[k - 1] = 0.9 * 2 * math.pi / length
    return frequencies


@pytest.mark.parametrize(("k", "length"), [(1, 10), (4, 42), (8, 130)])
def test_the_frames_of_a_video(k: int, length: int) -> None:
    scaling = Axial(sections=(16, 56, 56))  # HunyuanVideo, of base 256
    result = RIFLEx(k, length, scaling).frequencies(256.0, 128)
    np.testing.assert_allclose(result[:8], reference(16, 256.0, k, length), rtol=1e-14)
    assert np.array_equal(result[8:], scaling.frequencies(256.0, 128)[8:])


def test_positions_of_one_component() -> None:
    result = RIFLEx(3, 42).frequencies(1e4, 16)
    np.testing.assert_allclose(result, reference(16, 1e4, 3, 42), rtol=1e-14)
    assert 41 * result[2] < 2 * math.pi < 47 * result[2]  # the video makes less than a turn


def test_alternating_axes() -> None:
    scaling = Axial(sections=(4, 8), order="alternating")
    before, after = scaling.frequencies(1e4, 12), RIFLEx(3, 9, scaling, axis=1).frequencies(1e4, 12)
    (changed,) = np.flatnonzero(before != after)
    assert changed == 4  # frame, row, frame, row, row, row
    assert after[changed] == 0.9 * 2 * math.pi / 9


WRONG: tuple[tuple[str, type[Exception], Any], ...] = (
    ("RIFLEx.k must be positive", RopeError, lambda: RIFLEx(0, 4)),
    ("RIFLEx.length must be an integer", TypeError, lambda: RIFLEx(1, 4.0)),  # type: ignore[arg-type]  # the mistake
    ("RIFLEx.share must be positive", RopeError, lambda: RIFLEx(1, 4, share=0)),
    ("RIFLEx.scaling must be", TypeError, lambda: RIFLEx(1, 4, "axial")),  # type: ignore[arg-type]  # the mistake
    ("RIFLEx.axis must be one of 2", RopeError, lambda: RIFLEx(1, 4, Axial(2), axis=2)),
    ("'strided' has one for all", RopeError, lambda: RIFLEx(1, 4, Axial(2, "strided"))),
    ("names no pair", RopeError, lambda: RIFLEx(5, 4, Axial(2)).frequencies(1e4, 16)),
)


@pytest.mark.parametrize(("message", "error", "make"), WRONG)
def test_errors(message: str, error: type[Exception], make: Any) -> None:
    with pytest.raises(error, match=message):
        make()
