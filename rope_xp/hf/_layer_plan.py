"""LayerPlan: what one layer does to q and k between their projections and the scores."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rope_xp.rope import RoPE
from rope_xp.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class NormPlan:
    """A norm of q and k. Weights, and the bias of a LayerNorm, are among the model's weights.

    ``kind`` is RMSNorm, see :class:`rope_xp.QKNorm`, or LayerNorm; ``eps`` is added to the mean of
    squares or the variance, ``offset`` to weights. ``over`` says what one mean spans: a head, all
    heads of a token, or the rotated slice of a head. ``arrays`` are normalized; those of
    ``weighted`` have a weight.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    offset: float = 0.0
    over: Literal["head", "all heads", "slice"] = "head"
    after_rotation: bool = False
    arrays: tuple[str, ...] = ("q", "k")
    weighted: tuple[str, ...] = ("q", "k")


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The factor of q at position p: ``1 + beta * log(1 + floor((p + shift) / length))``."""

    beta: float
    length: float
    shift: int = 0  # 1 in Llama 4, 0 in Ministral 3 and Mistral 4


@dataclass(frozen=True, kw_only=True)
class IndexerPlan:
    """The indexer of sparse attention: its rope, and the heads of its queries. It has one key."""

    rope: RoPE
    head_dim: int
    heads: int


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What a layer does to q and k; :func:`rope_xp.plan` returns one for each layer.

    Parameters
    ----------
    kind : str
        The configuration's word, such as "sliding_attention"; "attention" where it has none.
    rope : RoPE or None
        None: the layer has no positions.
    head_dim, heads, kv_heads : int or None
        Of q and k as they are rotated: latent attention (DeepSeek) has one head of k. These, and
        all below, are None in layers without self-attention, such as convolutions.
    softmax_scale : float or None
        The factor of the scores q k before their softmax, with :attr:`RoPE.softmax_scale`.
    norm : NormPlan or None
    temperature : Temperature or None
        What :meth:`query_factors` computes.
    indexer : IndexerPlan or None
    """

    kind: str
    rope: RoPE | None = None
    head_dim: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    softmax_scale: float | None = None
    norm: NormPlan | None = None
    temperature: Temperature | None = None
    indexer: IndexerPlan | None = None

    def query_factors(self, positions: Any) -> NDArray[np.float64]:
        """Return the factors by which the layer multiplies q, in the shape of positions.

        Ones in most models. In Llama 4 (its layers without positions), Ministral 3 and Mistral 4
        they grow with the position.

        Examples
        --------
        >>> from rope_xp.hf import LayerPlan, Temperature
        >>> layer = LayerPlan(kind="attention", temperature=Temperature(beta=0.5, length=4))
        >>> layer.query_factors([0, 4]).round(3).tolist()
        [1.0, 1.347]
        """
        p = np.asarray(positions, np.float64)
        if (t := self.temperature) is None:
            return np.ones_like(p)
        return np.asarray(1.0 + t.beta * np.log1p(np.floor((p + t.shift) / t.length)))


def describe(value: Any) -> Any:
    """Return a plan as JSON holds it; a scaling gets the name of its class."""
    if is_dataclass(value):
        name: dict[str, Any] = {"name": type(value).__name__} if isinstance(value, Scaling) else {}
        return name | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    return [describe(v) for v in value] if isinstance(value, tuple) else value
