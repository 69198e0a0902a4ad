"""Look up keys of a configuration under all names that they have had, and defaults of its model."""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp._core.typing import Layout
from rope_xp.hf import _limits
from rope_xp.hf._attention import IndexerRow, Need, NormRow

Part = Mapping[str, Any]  # a configuration, or a part of one
Parameters = Mapping[str, Any]
LayerParameters = dict[str, Parameters | None]  # by layer type; None: no positions
TRAINED, EXTENDED = "original_max_position_embeddings", "max_position_embeddings"
FLAT = ""  # the label of parameters for all layers
_NAMES = """
    rope_theta rotary_emb_base rotary_embedding_base
    partial_rotary_factor partial_rotary_factors rotary_pct rope_pct rotary_emb_fraction
    max_position_embeddings max_seq_len n_positions model_max_length
    head_dim attention_head_dim kv_channels
    hidden_size n_embd d_model embed_dim
    num_attention_heads n_head n_heads num_heads decoder_num_attention_heads
    num_key_value_heads num_kv_heads kv_n_heads decoder_num_key_value_heads
    num_hidden_layers n_layer n_layers num_layers depth decoder_num_hidden_layers
"""
NAMES = {names[0]: tuple(names) for names in map(str.split, _NAMES.strip().splitlines())}
"""All names that keys at top level have had, the newest first."""
BASE, PARTIAL, HEAD_DIM = (NAMES[k] for k in ("rope_theta", "partial_rotary_factor", "head_dim"))
ROTARY_KEYS = ("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim", *BASE, *PARTIAL)

SCALING_KEYS = {
    *("rope_type", "type", "factor", "alpha", "attention_factor", "mscale", "mscale_all_dim"),
    *("beta_fast", "beta_slow", "truncate", "low_freq_factor", "high_freq_factor"),
    *("short_factor", "long_factor", "short_mscale", "long_mscale", TRAINED, EXTENDED),
    *("attn_factor", "extrapolation_factor"),  # of the first models with YaRN, and not read
    "apply_yarn_scaling",  # of vLLM, and not read
}
_ESSENTIAL = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_dim"),
    *("mrope_section", "xdrope_section"),
}
"""Of which rotary parameters have one at least."""
_KNOWN = SCALING_KEYS | _ESSENTIAL | {"mrope_interleaved"}
_IGNORED = {
    "llama_4_scaling_beta",  # the attention scales q by it
    "interleaved",  # of Qwen3-Omni, whose sections are interleaved without it
    "finetuned",
}
"""Keys of files that do not change the rotation in transformers."""


class LayerType(NamedTuple):
    """Defaults of the layers of one type."""

    base: float
    partial: float | None = 1.0
    base_key: str | None = None  # top-level key of the base
    is_scaled: bool = False  # whether flat parameters are for these layers
    others: Mapping[str, Any] = {}

    @property
    def parameters(self) -> Parameters:
        return {"rope_theta": self.base, "partial_rotary_factor": self.partial, **self.others}


@dataclass(frozen=True)
class Model:
    """The row of a model type."""

    layout: Layout = "half"
    base: float = 10000.0
    partial: float = 1.0
    reads_interleave: bool = False  # whether rope_interleave: false means halves
    reads_share: bool = True  # whether a share of a head may rotate, as partial_rotary_factor says
    trailing: bool = False  # whether the rotated slice lies at the end of the head
    rotary_dim: int | None = None  # default number of rotated components
    sections: tuple[int, ...] = ()  # default mrope_section: how many pairs read each component
    section_order: str = "contiguous"  # or interleaved, ernie, across, rows and columns
    axial: str = ""  # order of rope_xp.scaling.Axial; empty for other models
    components: tuple[int, ...] = (0, 1)  # of a position, in the order of the axes of ``axial``
    width: tuple[str, ...] = ("hidden_size", "num_attention_heads")  # head_dim: first over others
    sizes: Mapping[str, int] = field(default_factory=dict)  # defaults of head_dim and other sizes
    layers: Mapping[str, LayerType | None] = field(default_factory=dict)  # None: no positions
    unrotated: tuple[str, ...] = ()  # layer types that the code does not rotate
    rotated_without_window: bool = False  # whether it rotates them if sliding_window is null
    unrotated_every: int | None = None  # of so many layers the last is not rotated, by default
    rotary_if: tuple[str, Any] | None = None  # a key, and its value if the model rotates
    # What follows is in the tables of _attention.py, and only rope_xp.plan reads it.
    norms: tuple[NormRow, ...] = ()  # the first whose condition holds
    softmax: Callable[[Need, int], float] = lambda _, head_dim: head_dim**-0.5
    indexer: IndexerRow | None = None
    kinds_key: str = ""  # the key that says which layers have attention, of types where not all do
    needs: tuple[str, ...] = ()  # other keys that must not be missing
    per_layer: int = 1  # how often a layer has attention
    sliding_kv_factor: int = 1  # of the heads of k in layers with a sliding window
    has_temperature: bool = False  # whether layers without positions scale q by position
    obstacle: str = ""  # why there is no plan


@contextmanager
def naming_errors(where: str = "") -> Iterator[None]:
    """Make an error of a value one of the configuration, which says where the value is."""
    try:
        yield
    except RopeConfigError:
        raise
    except (RopeError, TypeError, ArithmeticError) as error:
        raise RopeConfigError(f"{where}{error}") from error


def first_value(config: Part, *names: str) -> Any:
    """Return the first value that is not None."""
    return next((config[name] for name in names if config.get(name) is not None), None)


def find_value(config: Part, name: str) -> Any:
    """Return the value of a key under any of its names."""
    return first_value(config, *NAMES.get(name, (name,)))


def read_size(config: Part, name: str) -> int | None:
    """Return a positive integer of the configuration; None if it is missing."""
    for key in NAMES.get(name, (name,)):
        if config.get(key) is not None:
            with naming_errors():
                return numbers.check_positive_int(key, config[key])
    return None


def read_head_dim(config: Part, model: Model) -> int | None:
    """Return the components of a head; None if sizes are missing."""
    if head_dim := read_size(config, "head_dim") or model.sizes.get("head_dim"):
        return head_dim
    width, *divisors = (read_size(config, name) or model.sizes.get(name) for name in model.width)
    return None if None in (width, *divisors) else width // math.prod(divisors)  # type: ignore[operator, arg-type]  # not None


def parameters_key(config: Part) -> str:
    """Return the key of the rotary parameters; transformers 4 wrote rope_scaling."""
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def read_layers(config: Part, model: Model) -> LayerParameters:
    """Return the rotary parameters of each layer type, under ``FLAT`` if all share them."""
    nested, flat = _split_parameters(config, model)
    layers: LayerParameters = {
        label: None if parameters is None else _fill_in(config, parameters, model, label)
        for label, parameters in {**_default_layers(config, flat, model), **nested}.items()
        if label or not nested
    }
    no_window = "sliding_window" in config and config["sliding_window"] is None
    if FLAT in layers and model.unrotated and not (model.rotated_without_window and no_window):
        return {"sliding_attention": layers[FLAT], **dict.fromkeys(model.unrotated)}
    return layers


def _split_parameters(config: Part, model: Model) -> tuple[LayerParameters, Parameters]:
    """Return the parameters of single layer types, or else those that all layers share."""
    name = parameters_key(config)
    parameters = config.get(name) or {}
    if not isinstance(parameters, Mapping):
        raise RopeConfigError(f"{name} must be a dictionary; got {parameters!r}")
    layer_types = config.get("layer_types") or ()
    if isinstance(layer_types, str) or not isinstance(layer_types, Sequence):
        raise RopeConfigError(f"layer_types must be a list of names; got {layer_types!r}")
    _limits.check_size("layer_types", layer_types, _limits.LAYERS)
    declared = {name for name in layer_types if isinstance(name, str)} | {*model.layers}
    items = parameters.items()
    nested = {k: v for k, v in items if isinstance(v, Mapping) or (v is None and k in declared)}
    flat = {k: v for k, v in items if k not in nested}
    for key in declared & {*flat}:
        raise RopeConfigError(f"{name}.{key} must be a dictionary of parameters; got {flat[key]!r}")
    _limits.check_size(f"{name} by layer type", nested, _limits.LAYER_TYPES)
    for label, values in {**nested, FLAT: flat}.items():
        where = f"{name}.{label}" if label else name
        _check_parameters(where, values or {}, is_whole=bool(label) or not nested)
    return nested, {} if nested else flat


def _check_parameters(where: str, values: Parameters, *, is_whole: bool) -> None:
    if values and is_whole and _ESSENTIAL.isdisjoint(values):
        key, value = next(iter(values.items()))
        raise RopeConfigError(
            f"{where}.{key} = {value!r} is not the dictionary of a layer type, and {where} has "
            f"none of {', '.join(sorted(_ESSENTIAL))}"
        )
    for key, value in values.items():  # a misspelt one would change the rotation unread
        if not (key in _KNOWN | _IGNORED or value is None or isinstance(value, Mapping)):
            near = difflib.get_close_matches(str(key), sorted(_KNOWN), n=1)
            hint = f"did you mean {near[0]}?" if near else "remove it if it changes no rotation"
            raise RopeConfigError(f"{where}.{key} = {value!r} is an unknown key; {hint}")


def _default_layers(config: Part, flat: Parameters, model: Model) -> LayerParameters:
    """Return the parameters of the table, with the flat ones for the layers that they scale."""
    if not model.layers or (flat and FLAT in model.layers):
        return {FLAT: flat}
    if flat and not any(layer and layer.is_scaled for layer in model.layers.values()):
        msg = f"rope_parameters must have one dictionary for each of {', '.join(model.layers)}"
        raise RopeConfigError(f"{msg}; got {dict(flat)!r}")
    layers: LayerParameters = dict.fromkeys(model.layers)
    for label, layer in model.layers.items():
        if layer is None:
            continue
        scaled = _add_rope_type(flat) if flat and layer.is_scaled else {}
        layers[label] = parameters = {**layer.parameters, **scaled}
        key = layer.base_key
        base = None if key is None else _layer_value(config, key, label)
        # A key of this layer type alone takes precedence over the dictionary.
        if base is not None and (key != "rope_theta" or scaled.get(key) is None):
            parameters["rope_theta"] = base
    return layers


def _add_rope_type(parameters: Parameters) -> dict[str, Any]:
    """Return the parameters with rope_type, whose old name is type."""
    rope_type = first_value(parameters, "rope_type", "type")
    return {**parameters, "rope_type": "default" if rope_type is None else rope_type}


def _layer_value(config: Part, key: str, label: str) -> Any:
    """Return a value of the configuration, which may be a list with an entry for each layer."""
    value, layer_types = config.get(key), config.get("layer_types")
    if label == FLAT or not isinstance(value, list):
        return value
    if not isinstance(layer_types, list):
        raise RopeConfigError(f"layer_types is missing; {key} lists an entry per layer: {value!r}")
    entries = zip(layer_types, value, strict=False)
    return next((entry for layer_type, entry in entries if layer_type == label), None)


def _fill_in(config: Part, parameters: Parameters, model: Model, label: str) -> dict[str, Any]:
    """Return the parameters with rope_type, rope_theta and partial_rotary_factor filled in."""
    _check_base(config, parameters, label)
    own = {k: v for k, v in parameters.items() if not (v is None or isinstance(v, Mapping))}
    filled = _add_rope_type(own)
    if model.axial and filled["rope_type"] == "default":
        filled["rope_type"] = "axial"
    layer = model.layers.get(label)
    table = layer.parameters if layer else {}
    bases = (layer.base_key,) if layer and layer.base_key else BASE
    partial = "partial_rotary_factor", PARTIAL, model.partial
    for name, keys, default in (("rope_theta", bases, model.base), partial):
        values = (filled.get(name), *(_layer_value(config, k, label) for k in keys))
        found = (v for v in (*values, table.get(name)) if v is not None)
        filled[name] = next(found, default)
    return filled


def _check_base(config: Part, parameters: Parameters, label: str) -> None:
    """Check that the base is not null, for which transformers has no default."""
    base = first_value(config, *BASE)
    if parameters.get("rope_theta", base) is not None:
        return
    if "rope_theta" in parameters:
        where = ".".join(filter(None, (parameters_key(config), label)))
        raise RopeConfigError(
            f"{where}.rope_theta is null"
            + f", and rope_theta = {base} at top level is not read" * (base is not None)
            + ". Assigning rope_scaling leaves it so, and drops partial_rotary_factor and "
            "mrope_section: assign rope_parameters with all of them"
        )
    if missing := [key for key in BASE if key in config]:
        raise RopeConfigError(f"{missing[0]} is null; set it to the base of the model")
