"""What a scaling rule answers."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract.errors import RopeError


@runtime_checkable
class Scaling(Protocol):
    """What a scaling rule must answer. Rules are frozen dataclasses, so that they are hashable."""

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the scaled frequencies in radians per token, shape (rotary_dim / 2,)."""
        ...

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by; 1.0 for most rules."""
        ...

    @property
    def softmax_scale(self) -> float:
        """What the caller's softmax scale is to be multiplied by; 1.0 for most rules."""
        ...

    def for_length(self, n: int) -> Scaling:
        """Return the rule fixed for a context of n tokens; itself where length does not matter."""
        ...


class Rule:
    """What most rules answer: lengths of q and k, and of the context, do not matter."""

    @property
    def attention_factor(self) -> float:
        """Always 1.0, as the rule leaves the length of q and k alone."""
        return 1.0

    @property
    def softmax_scale(self) -> float:
        """Always 1.0, as the rule asks for no correction of the softmax."""
        return 1.0

    def for_length(self, n: int) -> Self:
        """Return the rule itself, which does not depend on length."""
        return self


def no_length(rule: str) -> RopeError:
    """Return the error of a rule whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {rule} depend on the length of the context; fix it first, by "
        "rope = rope.for_length(n). All keys of one attention need the same"
    )
