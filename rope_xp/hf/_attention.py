"""What attention does to q and k besides rotating them, for the rows of :mod:`rope_xp.hf._models`.

No configuration says where a norm stands, what it covers or whether its weight has an offset: only
the code of transformers does. ``tests/support/plans.py`` compares the rows with the models it runs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rope_xp._core.typing import Layout

Need = Callable[[str], Any]
"""From a key to its value, or to an error that says that it is missing."""


class NormRow(NamedTuple):
    """A norm of q and k: the fields of a NormPlan that are not their defaults."""

    fields: Mapping[str, Any] = {}
    eps: str | float = "rms_norm_eps"  # a key, or the number that the code has
    only_if: tuple[str, Any] | None = None  # a key, and its value if there is a norm
    only_rotated: bool = False  # whether layers without positions have none


class IndexerRow(NamedTuple):
    """The indexer of sparse attention: the rope of its layers with another layout or slice."""

    layout: Layout | None = None  # None: that of the attention
    trailing: bool = False
    kinds: tuple[str, ...] = ()  # the layers that have one; empty for all
    keys: tuple[str, ...] = ("index_head_dim", "index_n_heads")
    modes: str = ""  # a key that lists "shared" for layers that have none


_ALL_HEADS, _LAYER, _AFTER = {"over": "all heads"}, {"kind": "layer"}, {"after_rotation": True}
_NO_WEIGHT: Mapping[str, Any] = {"weighted": ()}

_NORMS: dict[str, NormRow | tuple[NormRow, ...]] = {
    """
    afmoe apertus apertus1p5 beam diffusion_gemma doge dots1 embedding_gemma2 exaone4 exaone_moe
    flint gemma3n gemma4 gemma4_unified hy_v3 kolibri1 laguna lara_mini mellum
    muse_glimmer_assistant pe_audio_encoder pe_audio_video_encoder pe_video_encoder qwen3 qwen3_moe
    qwen3_omni_moe qwen3_omni_moe_talker qwen3_omni_moe_talker_code_predictor qwen3_vl qwen3_vl_moe
    timesfm2_5
    """: NormRow(),
    """
    gemma3 minimax_m3_vl qwen3_5 qwen3_5_moe qwen3_next qwen4_exp step3p5 t5gemma2 t5gemma2_decoder
    """: NormRow({"offset": 1.0}),
    "glm4_moe sarvam_moe": NormRow(only_if=("use_qk_norm", True)),
    "lfm2 lfm2_moe lfm3": NormRow(eps="norm_eps"),
    "neomme": NormRow(_NO_WEIGHT, eps="norm_eps"),
    "muse_glimmer muse_spark": NormRow(_NO_WEIGHT),
    "flex_olmo minimax_m2 olmo2 olmo3 olmo_hybrid olmoe": NormRow(_ALL_HEADS),
    "molmo2": (
        NormRow(only_if=("qk_norm_type", "qwen3")),
        NormRow(_ALL_HEADS, only_if=("qk_norm_type", "olmo")),
    ),
    "hunyuan_v1_dense hunyuan_v1_moe": NormRow(_AFTER),
    "llama4": NormRow({**_AFTER, **_NO_WEIGHT}, only_if=("use_qk_norm", True), only_rotated=True),
    "deepseek_v4": NormRow({"weighted": ("k",)}),
    "dots3_note": NormRow({"over": "slice", "arrays": ("k",), "weighted": ("k",)}),
    "chameleon nemotron3_5_transcribe_word_timestamp": NormRow(_LAYER, eps=1e-5),
    "esmc": NormRow({**_LAYER, **_ALL_HEADS}, eps=1e-5),
    "cohere": NormRow(_LAYER, eps="layer_norm_eps", only_if=("use_qk_norm", True)),
    "persimmon phi stablelm": NormRow(_LAYER, eps="layer_norm_eps", only_if=("qk_layernorm", True)),
}
_SOFTMAX: dict[str, Callable[[Need, int], float]] = {
    "gemma2 gemma3 step3p5 t5_gemma_module t5gemma2 t5gemma2_decoder vaultgemma": (
        lambda need, _: float(need("query_pre_attn_scalar")) ** -0.5
    ),
    """
    granite granite4_vision granite_docling granite_swa granitemoe granitemoe_swa granitemoehybrid
    granitemoeshared hyperclovax
    """: lambda need, _: float(need("attention_multiplier")),
    "dia_decoder dia_encoder diffusion_gemma embedding_gemma2 gemma3n gemma4 gemma4_unified": (
        lambda _, __: 1.0
    ),
    "zamba2": lambda _, head_dim: (head_dim / 2) ** -0.5,
}
_INDEXERS = {
    "axk2 deepseek_v32": IndexerRow("half"),
    "glm_moe_dsa": IndexerRow(modes="indexer_types"),
    "hy_v4 hy_v4_vl": IndexerRow(trailing=True, modes="indexer_types"),
    "dots3_note": IndexerRow(kinds=("indexed_attention",)),
    "deepseek_v4": IndexerRow(trailing=True, kinds=("compressed_sparse_attention",)),
    "minimax_m3_vl": IndexerRow(kinds=("minimax_m3_sparse",)),
    "qwen4_exp": IndexerRow(
        kinds=("indexed_attention",), keys=("indexer_head_dim", "indexer_n_heads")
    ),
}
_KINDS = {
    """
    bailing_hybrid granitemoehybrid lara_mini lfm2 lfm2_moe lfm3 minimax olmo_hybrid qwen3_5
    qwen3_5_moe qwen3_next qwen4_exp
    """: "layer_types",
    "bamba": "attn_layer_indices",
    "mllama_text_model": "cross_attention_layers",
    "recurrent_gemma": "block_types",
    "zamba2": "layers_block_type",
}
_TABLES: dict[str, Mapping[str, Any]] = {
    "norms": {k: (v,) if isinstance(v, NormRow) else v for k, v in _NORMS.items()},
    "softmax": _SOFTMAX,
    "indexer": _INDEXERS,
    "kinds_key": _KINDS,
    "needs": {"muse_glimmer muse_spark": ("layer_rope_theta",)},
    "per_layer": {"longcat_flash": 2},
    "sliding_kv_factor": {"mimo_v2_flash": 2},
    "has_temperature": {"llama4": True},
    "obstacle": {"dory zaya": "its norm of q and k is none of RMSNorm and LayerNorm"},
}
ATTENTION: defaultdict[str, dict[str, Any]] = defaultdict(dict)
"""Fields of the rows of :mod:`rope_xp.hf._models`, by model type."""
for _key, _table in _TABLES.items():
    for _names, _value in _table.items():
        for _name in _names.split():
            ATTENTION[_name][_key] = _value
