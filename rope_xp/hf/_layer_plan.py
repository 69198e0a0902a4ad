"""LayerPlan: what one layer does to q and k between their projections and the scores."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rope_xp.rope import RoPE
from rope_xp.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class NormPlan:
    """A norm of q and k. Its weights, and the bias of a LayerNorm, are in the model's weights.

    Parameters
    ----------
    eps : float
        Added to the mean of squares, or to the variance.
    kind : {"rms", "layer"}, default "rms"
        RMSNorm, for which :class:`rope_xp.QKNorm` stands, or LayerNorm.
    offset : float, default 0.0
        Added to weights: 1.0 in most of Gemma's.
    over : {"head", "all heads", "slice"}, default "head"
        What one mean spans: a head, all heads of a token, or the rotated slice of a head.
    after_rotation : bool, default False
    arrays, weighted : tuple of {"q", "k"}
        Which are normalized, and which have a weight.
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
    """The factor of q at position p: ``1 + beta * log(1 + floor((p + shift) / length))``.

    Llama 4 has shift 1, Ministral 3 and Mistral 4 have 0.
    """

    beta: float
    length: float
    shift: int = 0


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
        The components of a head, and the heads of q and of k as they are rotated: in latent
        attention (DeepSeek) one head of k. None in layers without self-attention, such as
        convolutions, which have nothing below either.
    softmax_scale : float or None
        The factor of the scores q k before their softmax, all told: with
        :attr:`RoPE.softmax_scale`.
    norm : NormPlan or None
    temperature : Temperature or None
        See :meth:`query_factors`.
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
        they grow with the position; see :class:`Temperature`.

        Examples
        --------
        >>> import rope_xp
        >>> layer = rope_xp.plan({
        ...     "model_type": "llama", "num_hidden_layers": 1, "head_dim": 64,
        ...     "num_attention_heads": 4, "num_key_value_heads": 2,
        ... })[0]
        >>> layer.query_factors([0, 100_000]).tolist()
        [1.0, 1.0]
        """
        p = np.asarray(positions, np.float64)
        if self.temperature is None:
            return np.ones_like(p)
        t = self.temperature
        return np.asarray(1.0 + t.beta * np.log1p(np.floor((p + t.shift) / t.length)))


def describe(value: Any) -> Any:
    """Return a plan as JSON holds it; a scaling gets the name of its class."""
    if is_dataclass(value):
        name = {"name": type(value).__name__} if isinstance(value, Scaling) else {}
        return name | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    return [describe(v) for v in value] if isinstance(value, tuple) else value
