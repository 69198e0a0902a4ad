"""Move the keys of transformers' caches: to other positions, onto another scaling, or together."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.call import LIMIT
from rope_xp._core.errors import RopeError
from rope_xp.hf import LayerPlan, plan
from rope_xp.integrations._cache_angles import AXES, AngleSource, Positions, count_context, rotate
from rope_xp.integrations._cache_layers import TOKENS, CacheLayer, read_layers
from rope_xp.rope import RoPE
from rope_xp.scaling import Scaling


def move_keys(
    cache: Any,
    model_or_config: Any,
    old_positions: Any,
    new_positions: Any,
    *,
    layers: Iterable[int] | None = None,
    to: Any = None,
) -> None:
    """Move cached keys to other positions, in place.

    Each layer moves by its own plan, see :func:`rope_xp.plan`: layers without positions stay as
    they are. Everything is checked before anything is written.

    Parameters
    ----------
    cache : Cache of transformers
        Dynamic, static, quantized or offloaded. Layers with a sliding window hold the last tokens.
    model_or_config : torch.nn.Module, or config as in :func:`rope_xp.plan`
        The model that filled the cache, or its configuration.
    old_positions, new_positions : array or sequence, (tokens,) or (batch, tokens)
        Of all tokens that the cache has seen; None for 0, 1, ... Models with M-RoPE also take
        (components, batch, tokens). Frequencies that depend on the length of the context are those
        for the largest position. Tokens whose position stays keep their bits, float64 aside.
    layers : iterable of int, optional
        The layers to move. Default: all.
    to : Scaling, RoPE, model or config, optional
        Other scaling, or other ropes, for the moved keys. They must rotate the same pairs.

    Raises
    ------
    RopeError, TypeError
        If a layer cannot be moved, or if positions do not fit. The message names the layer.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import move_keys
    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1))
    >>> with torch.no_grad():
    ...     cache = model(torch.arange(8)[None]).past_key_values
    >>> move_keys(cache, model, range(8), range(1000, 1008))
    """
    plans = _read_plans(model_or_config)
    found = read_layers(cache, plans)
    old = _read_positions("old_positions", old_positions, found)
    new = _read_positions("new_positions", new_positions, found)
    source = AngleSource(old, new, _read_targets(plans, to))
    chosen = {*range(len(plans))} if layers is None else {*layers}
    if not chosen <= {*range(len(plans))}:
        raise RopeError(f"layers must be >= 0 and below {len(plans)}; got {sorted(chosen)}")
    arrays = [
        (layer, stored) for layer in found if layer.index in chosen for stored in layer.arrays
    ]
    moves = [(*pair, angles) for pair in arrays if (angles := source.find(*pair)) is not None]
    for layer, stored, angles in moves:
        x = layer.read(stored)
        rotated = rotate(x, angles)
        if rotated is not x or stored.is_quantized:
            layer.write(stored, rotated)


def rescale(
    cache: Any, model: Any, to: Any, *, positions: Any = None, layers: Iterable[int] | None = None
) -> None:
    """Rotate cached keys onto another scaling, in place; positions stay the same.

    Change the scaling of the model too. For parameters see :func:`move_keys`.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import rescale
    >>> from rope_xp.scaling import YaRN
    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1))
    >>> with torch.no_grad():
    ...     cache = model(torch.arange(8)[None]).past_key_values
    >>> rescale(cache, model, YaRN(4.0, original_max_position_embeddings=2048))
    """
    move_keys(cache, model, positions, positions, layers=layers, to=to)


def drop(
    cache: Any, model: Any, spans: Iterable[tuple[int, int]], *, positions: Any = None
) -> None:
    """Remove tokens from a cache, and move the keys behind them to close the gaps, in place.

    Generation goes on as if the tokens had never been counted. Keys and values of later tokens
    still carry what these read of them. Drop the same columns from an attention mask.

    Parameters
    ----------
    cache, model
        See :func:`move_keys`. A layer with a sliding window must still hold what its window needs.
        Layers with a state, as of linear attention, are an error.
    spans : iterable of (int, int)
        Tokens ``start`` to ``stop - 1``, counted from 0 in the order in which the cache saw them.
    positions : array or sequence, optional
        See ``old_positions`` of :func:`move_keys`.

    Examples
    --------
    StreamingLLM (arXiv 2309.17453) keeps the first tokens and the last, here 4 and 8:

    >>> import torch
    >>> from rope_xp.integrations.transformers import drop
    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1))
    >>> with torch.no_grad():
    ...     cache = model(torch.arange(20)[None]).past_key_values
    >>> drop(cache, model, [(4, cache.get_seq_length() - 8)])
    >>> cache.get_seq_length()
    12
    """
    plans = _read_plans(model)
    found = read_layers(cache, plans, is_resized=True)
    old = _read_positions("positions", positions, found)
    kept, new = _close_gaps(old, spans)
    source, moves = AngleSource(old, new, _read_targets(plans)), []
    for layer in found:
        if layer.window is not None and (kept >= layer.start).sum() < min(len(kept), layer.window):
            raise RopeError(
                f"layer {layer.index} holds the tokens from {layer.start} on, and without these "
                "its window needs earlier ones; drop only earlier tokens, or fill a DynamicCache() "
                "without a configuration, which holds all tokens"
            )
        for stored in layer.arrays:
            tokens = kept[(kept >= stored.start) & (kept < stored.stop)]
            if not tokens.size and stored.is_quantized:
                raise RopeError(f"layer {layer.index} would keep none of its quantized tokens")
            moves.append((layer, stored, tokens, source.find(layer, stored, tokens)))
    for layer, stored, tokens, angles in moves:
        x = layer.read(stored)
        x = x.index_select(TOKENS, torch.from_numpy(tokens - stored.start).to(x.device))
        layer.write(stored, x if angles is None else rotate(x, angles))
    for layer in found:
        layer.set_seen(len(kept))


def join(prefix_cache: Any, chunk_cache: Any, model: Any, *, offset: int | None = None) -> None:
    """Append a chunk that was prefilled alone, from position 0, to a cache, in place.

    Its keys move behind the prefix; ``chunk_cache`` does not change. Attention within the chunk is
    right, and attention from the chunk to the prefix is missing: an approximation, see
    :doc:`/caches`.

    Parameters
    ----------
    prefix_cache, chunk_cache, model
        See :func:`drop`.
    offset : int, optional
        The new position of the first token of the chunk. Default: the tokens of the prefix.

    Examples
    --------
    >>> import torch
    >>> from rope_xp.integrations.transformers import join
    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1))
    >>> with torch.no_grad():
    ...     prefix, chunk = (model(torch.arange(n)[None]).past_key_values for n in (5, 20))
    >>> join(prefix, chunk, model)
    >>> prefix.get_seq_length()
    25
    """
    plans = _read_plans(model)
    prefix = read_layers(prefix_cache, plans, "prefix_cache", is_resized=True)
    chunk = read_layers(chunk_cache, plans, "chunk_cache", is_resized=True)
    if [layer.index for layer in prefix] != [layer.index for layer in chunk]:
        raise RopeError("prefix_cache and chunk_cache must hold tokens in the same layers")
    length, old = prefix[0].seen, np.arange(chunk[0].seen)
    new = old + (length if offset is None else numbers.check_int("offset", offset))
    source, moves = AngleSource(old, new, _read_targets(plans)), []
    for own, other in zip(prefix, chunk, strict=True):
        _check_fit(own, other)
        for stored in own.arrays:
            lengths, size = (length, count_context(new)), own.read(stored).shape[-1]
            if stored.rope and len({_read_series(stored.rope, n, size) for n in lengths}) > 1:
                raise RopeError(
                    f"layer {own.index} has other frequencies for {new[-1] + 1} tokens than for "
                    f"the {length} of prefix_cache; prefill them together"
                )
        moves.append((own, other, [(x, source.find(other, x)) for x in other.arrays]))
    for own, other, arrays in moves:
        rows: dict[str, list[torch.Tensor]] = {}
        for stored, angles in arrays:
            x = other.read(stored)
            x = x if angles is None else angles.rotate(x, axes=AXES[x.ndim])
            rows.setdefault(stored.role, []).append(x)
        own.append({role: torch.cat(x, TOKENS) for role, x in rows.items()}, other.seen)


def _read_series(rope: RoPE, length: int, head_dim: int) -> tuple[float, ...]:
    """Return the attention factor and the frequencies of a context of so many tokens."""
    fixed = rope.for_length(length)
    return fixed.attention_factor, *fixed.frequencies(rope.rotary_dim or head_dim).tolist()


def _check_fit(own: CacheLayer, other: CacheLayer) -> None:
    """Check that the tokens of one layer can be appended to another."""
    forms, count = [], own.seen + other.seen
    for layer in (own, other):
        x = {stored.role: layer.read(stored) for stored in layer.arrays}
        forms.append({r: (x.dtype, *x.shape[:TOKENS], x.shape[-1]) for r, x in x.items()})
    if forms[0] != forms[1]:
        raise RopeError(f"layer {own.index} of both caches must fit; got {forms[0]}, {forms[1]}")
    if own.capacity and own.window is None and count > own.capacity:
        raise RopeError(f"prefix_cache stores at most {own.capacity} tokens; got {count}")
    # A full static layer with a window holds one token more than queries read.
    needed = own.seen + other.seen if own.window is None else own.window - bool(own.capacity)
    if other.start and other.seen - other.start < needed:
        raise RopeError(
            f"layer {own.index} of chunk_cache holds the tokens from {other.start} on, and that of "
            "prefix_cache needs earlier ones; use caches of the same kind"
        )


def _read_plans(model: Any) -> tuple[LayerPlan, ...]:
    return plan(getattr(model, "config", model))


def _read_targets(plans: Sequence[LayerPlan], to: Any = None) -> list[RoPE | None]:
    """Return the rope of each layer after a move, of which base and scaling count."""
    ropes = [layer.rope for layer in plans]
    if to is None:
        return ropes
    if isinstance(to, Scaling):
        return [rope and replace(rope, scaling=to) for rope in ropes]
    targets: list[RoPE | None] = [to] * len(ropes) if isinstance(to, RoPE) else []
    targets = targets or [layer.rope for layer in _read_plans(to)]
    if len(targets) != len(ropes):
        raise RopeError(f"to must have {len(ropes)} layers, as model has; got {len(targets)}")
    for i, (rope, new) in enumerate(zip(ropes, targets, strict=True)):
        if rope and (new is None or replace(rope, base=new.base, scaling=new.scaling) != new):
            raise RopeError(f"to must rotate the same pairs; layer {i} has {rope}, and to {new}")
    return targets


def _read_positions(name: str, positions: Any, found: list[CacheLayer]) -> Positions:
    """Return positions on the host, one for each token that the layers have seen."""
    seen, batch = found[0].seen, len(found[0].read(found[0].arrays[0]))
    if isinstance(positions, torch.Tensor):
        positions = positions.detach().cpu()
    p: Positions = np.asarray(range(seen) if positions is None else positions)
    p = p.astype(np.int64) if p.dtype.kind == "u" else p  # differences are signed
    if p.dtype.kind not in "if":
        raise TypeError(f"{name} must hold integers or real floats (tokens); got {p.dtype}")
    has_components = any(x.rope and x.rope.position_axes for layer in found for x in layer.arrays)
    is_batched = p.ndim in (2, 2 + has_components) and p.shape[-2] in (1, batch)
    if p.shape[-1:] != (seen,) or not (p.ndim == 1 or is_batched):
        raise RopeError(
            f"{name} must have the shape ({seen},) or ({batch}, {seen}), the tokens that the cache "
            f"has seen; got {p.shape}"
        )
    if not (np.abs(p) < LIMIT).all():
        raise RopeError(f"{name} must lie between -{LIMIT} and {LIMIT}; got {p.min()} to {p.max()}")
    return p


def _close_gaps(
    old: Positions, spans: Iterable[tuple[int, int]]
) -> tuple[NDArray[np.int64], Positions]:
    """Return the tokens that stay, and the new positions of all; those of the others are 0."""
    seen, last = old.shape[-1], 0
    is_kept, new = np.ones(seen, bool), old.copy()
    for start, stop in sorted(spans):
        if not 0 <= start < stop <= seen:
            raise RopeError(f"spans must be pairs 0 <= start < stop <= {seen}; got {start, stop}")
        first, last = max(start, last), max(stop, last)
        is_kept[first:stop] = False
        if first < stop < seen:
            new[..., stop:] -= (old[..., stop] - old[..., first])[..., None]
    if not is_kept.any():
        raise RopeError("spans must leave at least one token; cache.reset() removes all")
    new[..., ~is_kept] = 0
    return np.flatnonzero(is_kept), new
