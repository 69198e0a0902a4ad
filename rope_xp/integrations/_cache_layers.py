"""Read and write the layers of transformers' caches: arrays with a row for each token, lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from rope_xp._core.errors import RopeError, rewording
from rope_xp.hf import LayerPlan
from rope_xp.rope import RoPE

TOKENS = -2
"""The axis of tokens of every array."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Stored(NamedTuple):
    """An array in which a layer stores some of the tokens that it has seen."""

    role: str  # keys, values or indexer_keys
    start: int
    stop: int
    is_quantized: bool = False
    rope: RoPE | None = None  # that rotated it


@dataclass(frozen=True)
class CacheLayer:
    """A layer that stores tokens: all that it has seen, or the last ones."""

    index: int
    layer: Any
    seen: int
    arrays: tuple[Stored, ...] = ()

    @property
    def start(self) -> int:
        """The first token that is stored."""
        return min(stored.start for stored in self.arrays)

    @property
    def capacity(self) -> int | None:
        """The most tokens that a static layer stores; None for a dynamic layer."""
        return getattr(self.layer, "max_cache_len", None)

    @property
    def window(self) -> int | None:
        """How many of the last tokens are stored; None for all."""
        if not getattr(self.layer, "is_sliding", False):
            return None
        return int(self.capacity or self.layer.sliding_window - 1)

    def read(self, stored: Stored) -> torch.Tensor:
        """Return an array, without the empty rows of a static layer."""
        x: torch.Tensor
        if stored.is_quantized:
            quantized = getattr(self.layer, f"_quantized_{stored.role}")
            x = self.layer._dequantize(quantized)  # noqa: SLF001  # no other name
            return x
        x = getattr(self.layer, stored.role)
        return x.narrow(TOKENS, 0, stored.stop - stored.start) if self.capacity else x

    def write(self, stored: Stored, x: torch.Tensor) -> None:
        """Replace an array by one of as many tokens, or fewer."""
        layer, role = self.layer, stored.role
        if stored.is_quantized:
            key = {"keys": "axis_key", "values": "axis_value"}[role]
            options = {"axis": getattr(layer, key)} if hasattr(layer, key) else {}
            quantized = layer._quantize(x.contiguous(), **options)  # noqa: SLF001  # no other name
            setattr(layer, f"_quantized_{role}", quantized)
        elif self.capacity:
            array, n = getattr(layer, role), x.shape[TOKENS]
            array.narrow(TOKENS, 0, n).copy_(x)
            array.narrow(TOKENS, n, array.shape[TOKENS] - n).zero_()
        else:
            setattr(layer, role, x)

    def append(self, arrays: dict[str, torch.Tensor], seen: int) -> None:
        """Append the arrays of a layer that has seen so many tokens."""
        device = self.read(self.arrays[0]).device
        keys, values, *indexer = (x.to(device) for x in arrays.values())
        self.layer.update(keys, values)
        for x in indexer:
            self.layer.update_indexer(x)
        self.set_seen(self.seen + seen)

    def set_seen(self, seen: int) -> None:
        for name in ("cumulative_length", "cumulative_length_int", "indexer_cumulative_length"):
            length = getattr(self.layer, name, None)
            if isinstance(length, torch.Tensor):
                length.fill_(min(seen, self.capacity or seen))
            elif length is not None:
                setattr(self.layer, name, seen)


def read_layers(
    cache: Any, plans: Sequence[LayerPlan], name: str = "cache", *, is_resized: bool = False
) -> list[CacheLayer]:
    """Return the layers that store tokens; an error names the first that cannot be read."""
    cache = getattr(cache, "self_attention_cache", cache)  # of encoder-decoder models
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list):
        raise TypeError(
            f"{name} must be a cache of transformers 5 with a list of layers, such as a "
            f"DynamicCache; got {type(cache).__name__}"
        )
    is_lazy = getattr(cache, "layer_class_to_replicate", None) is not None
    if len(layers) > len(plans) or (len(layers) < len(plans) and not is_lazy):
        raise RopeError(
            f"{name} has {len(layers)} layers, and the configuration {len(plans)}; pass the model "
            "that filled the cache"
        )
    if getattr(cache, "offloading", False) and torch.cuda.is_available():
        torch.cuda.synchronize()  # copies on other streams may be under way
    found = []
    for i, (layer, layer_plan) in enumerate(zip(layers, plans, strict=False)):
        with rewording(RopeError, f"layer {i} of {name} ({type(layer).__name__}): "):
            if is_resized and (
                any(getattr(layer, "has_previous_state", {}).values())
                or getattr(cache, "linear_cache", None)  # of MiniMax
            ):
                raise RopeError("its state depends on all tokens, and none can come or go")
            if getattr(layer, "keys", None) is not None and int(layer.get_seq_length()):
                found.append(_read_layer(i, layer, layer_plan))
    if len(seen := sorted({layer.seen for layer in found})) != 1:
        raise RopeError(f"layers of {name} must have seen as many tokens, at least one; got {seen}")
    return found


def _read_layer(i: int, layer: Any, layer_plan: LayerPlan) -> CacheLayer:
    is_quantized = hasattr(layer, "_quantized_keys")
    if type(layer).__module__ != "transformers.cache_utils" and not is_quantized:
        raise RopeError("rope_xp does not know how this class stores keys")
    if getattr(layer, "_pending_beam_idx", None) is not None:
        raise RopeError("the order of its beams is pending until the model runs again")
    if getattr(layer, "indexer_position_ids", None) is not None:
        raise RopeError("its indexer stores keys before their rotation, and positions")
    seen = int(layer.get_seq_length())
    found = CacheLayer(i, layer, seen, tuple(_list_arrays(layer, seen)))
    widths = {}
    for stored in found.arrays:
        if (x := found.read(stored)).dtype not in _DTYPES:
            raise RopeError(f"its {stored.role} must be floats; got {x.dtype}")
        if found.capacity and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RopeError("it was filled under torch.inference_mode; call this under it too")
        widths[stored.role] = x.shape[-1]
    ropes = _find_ropes(layer_plan, widths)
    return replace(found, arrays=tuple(a._replace(rope=ropes.get(a.role)) for a in found.arrays))


def _list_arrays(layer: Any, seen: int) -> Iterator[Stored]:
    """Yield what is quantized, then the last tokens, which are not yet, or never."""
    rest = min(seen, layer.keys.shape[TOKENS]) if layer.keys.ndim > 1 else 0
    for role in ("keys", "values", "indexer_keys"):
        if hasattr(layer, f"_quantized_{role}"):
            yield Stored(role, 0, seen - rest, is_quantized=True)
        if rest and getattr(layer, role, None) is not None:
            yield Stored(role, seen - rest, seen)


def _find_ropes(layer_plan: LayerPlan, widths: dict[str, int]) -> dict[str, RoPE]:
    """Return the rope of each array that the layer rotates, by its role."""
    rope, norm, indexer = layer_plan.rope, layer_plan.norm, layer_plan.indexer
    if rope is None:
        return {}
    if norm is not None and norm.after_rotation and "k" in norm.weighted:
        raise RopeError("it multiplies keys by the weights of a norm after their rotation")
    ropes = {"keys": rope}
    # Latent attention stores the latent as keys, and the rotated part of keys as values.
    is_latent = layer_plan.kv_heads == 1 and rope.rotary_offset < 0
    if is_latent and widths["values"] == rope.rotary_dim:
        ropes = {"values": replace(rope, rotary_offset=0)}
    elif widths["keys"] != layer_plan.head_dim:
        raise RopeError(f"its keys have {widths['keys']} components, not {layer_plan.head_dim}")
    if (width := widths.get("indexer_keys")) is not None:
        if indexer is None or indexer.head_dim != width:
            raise RopeError("its indexer is none that rope_xp knows")
        ropes["indexer_keys"] = indexer.rope
    return ropes
