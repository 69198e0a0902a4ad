"""A scaling that holds measured frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.scaling import Scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Measured(Scaling):
    """Measured frequencies, where they follow no scaling of rope_xp.

    Parameters
    ----------
    values : tuple of float, length r/2
        Radians per position, as measured.
    attention_factor : float, default 1.0
        What cos and sin are multiplied by.

    Raises
    ------
    RopeError
        If the attention factor is not positive; in ``frequencies``, if there are not r/2 values.

    Examples
    --------
    >>> import rope_xp
    >>> from rope_xp.testing import Measured
    >>> rope_xp.RoPE(scaling=Measured((1.0, 0.25))).frequencies(4).tolist()
    [1.0, 0.25]
    """

    values: tuple[float, ...]
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "attention_factor")

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the values."""
        if len(self.values) != rotary_dim // 2:
            raise RopeError(
                f"Measured.values has {len(self.values)} entries; {rotary_dim} rotated components "
                f"have {rotary_dim // 2} pairs"
            )
        return np.array(self.values)
