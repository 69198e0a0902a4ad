"""The largest error of cos and sin against float64, and that of the usual formula."""

import array_api_compat.numpy as xp
import numpy as np

import rope_xp
from rope_xp._bench import formulas

BASE = 10_000.0
HEAD_DIM = 128
COUNT = 4096


class Angles:
    """Over the 4096 positions below ``below``. The same on every library: tests see to that."""

    version = "1"
    params = ([131_072, 1_000_000, 10_000_000],)
    param_names = ("below",)

    def setup(self, below: int) -> None:
        self.positions = np.arange(below - COUNT, below)
        self.rope = rope_xp.RoPE(base=BASE)
        frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.exact = formulas.turns(self.positions, frequencies)

    def _error(self, cos: np.ndarray, sin: np.ndarray) -> float:
        cos_error, sin_error = np.abs(cos - self.exact.real), np.abs(sin - self.exact.imag)
        return float(max(np.max(cos_error), np.max(sin_error)))

    def track_max_error(self, below: int) -> float:
        return self._error(*self.rope.cos_sin(self.positions, HEAD_DIM))

    def track_usual_formula(self, below: int) -> float:
        cos, sin = formulas.usual_cos_sin(xp, self.positions, HEAD_DIM, BASE)
        half = HEAD_DIM // 2
        return self._error(cos[:, :half], sin[:, :half])

    track_max_error.unit = track_usual_formula.unit = "absolute"
