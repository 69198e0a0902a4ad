"""The norm before a rotation: apply it, undo it, and find what is wrong with it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Norm(NamedTuple):
    """An RMSNorm of q and k over head_dim."""

    scales: dict[str, Floats | float]  # of q and of k: weights (head_dim,) with the offset, or 1
    eps: float
    offset: float

    def apply(self, x: Floats, name: str) -> Floats:
        return divide(x, self.eps) * self.scales[name]

    def invert(self, x: Floats, name: str) -> tuple[Floats, Floats | float]:
        """Return what is normalised to a multiple of x, and x over that multiple."""
        if name == "v":
            return x, 1.0
        before = x / self.scales[name]
        size = np.sqrt((before**2).mean(axis=-1, keepdims=True) + self.eps)
        return before, size[:, :, None]


def divide(x: Floats, eps: float, axes: tuple[int, ...] = (-1,)) -> Floats:
    return np.asarray(x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + eps))


def simulate_faults(
    norm: Norm, x: Floats, name: str, turn: Callable[[Floats], Floats], result: Floats
) -> Iterator[tuple[str, Floats]]:
    """Yield results of norms that are wrong, with what is wrong; the last has the result's eps."""
    scale, other = norm.scales[name], norm.scales["qk".replace(name, "")]
    plain = divide(x, norm.eps)
    yield f"{name} is not normalised", turn(x)
    yield f"{name} is normalised after the rotation, not before", divide(turn(x), norm.eps) * scale
    yield f"weights of the norm of {name} are missing", turn(plain)
    offset = f"the offset {norm.offset:g} of the weights of the norm of {name} is missing"
    yield offset, turn(plain * (scale - norm.offset))
    yield f"1 is added to the weights of the norm of {name}", turn(plain * (scale + 1.0))
    yield f"{name} is multiplied by the weights of the other array", turn(plain * other)
    centred = x - x.mean(axis=-1, keepdims=True)
    fault = f"the mean of {name} is subtracted, as in LayerNorm"
    yield fault, turn(divide(centred, norm.eps) * scale)
    together = divide(x, norm.eps, (-3, -1))
    yield f"{name} is normalised over all heads together, not over each", turn(together * scale)
    # The size of a result shows eps, whatever it is.
    exact = turn(norm._replace(eps=0.0).apply(x, name))
    ratios = (result * exact).sum(axis=-1) / (exact**2).sum(axis=-1)
    mean = (x**2).mean(axis=-1)
    with np.errstate(all="ignore"):
        eps = float(np.median(mean / ratios**2 - mean))
    fault = f"eps of the norm of {name} is {eps:.3g}, and not {norm.eps:g}"
    yield fault, turn(norm._replace(eps=max(eps, 0.0)).apply(x, name))
