"""What the census changes, leaves and cannot call, with the reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Defaults that describe no rotation, and what makes one of them.
MENDED: dict[str, dict[str, Any]] = {
    "Glm4vTextConfig": {"head_dim": 64},  # mrope_section is for 32 pairs
    "Glm4vMoeTextConfig": {"head_dim": 128},  # hidden_size / num_attention_heads is odd
    "GlmImageTextConfig": {"head_dim": 64},  # as Glm4vTextConfig
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},  # as Glm4vMoeTextConfig
    "Qwen3OmniMoeTalkerTextConfig": {"head_dim": 128},  # mrope_section is for 64 pairs
    "EsmConfig": {"position_embedding_type": "rotary"},  # not rotary by default, as those below
    "GraniteMoeHybridConfig": {"position_embedding_type": "rope"},
    "SeamlessM4TConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2BertConfig": {"position_embeddings_type": "rotary"},
    "Wav2Vec2ConformerConfig": {"position_embeddings_type": "rotary"},
    "Zamba2Config": {"use_mem_rope": True},
    "Qwen4ExpTextConfig": {"head_dim": 64},  # mrope_section is for 32 pairs
}

LEFT = {
    "clvp.ClvpEncoderConfig.ClvpRotaryPositionalEmbedding": "it rotates v as well",
    "esmfold2.EsmFold2AtomEncoderConfig.EsmFold2RotaryEmbedding": "two bases, four components",
    "gemma4.Gemma4VisionConfig.Gemma4VisionRotaryEmbedding": "it rotates two slices of a head",
    "minimax_m3_vl.MiniMaxM3VLTextConfig.MiniMaxM3VLRotaryEmbedding": (
        "rotary_dim of its configuration is not heeded by its code"
    ),
    "musicflamingo.MusicFlamingoConfig.MusicFlamingoRotaryEmbedding": "angles of two positions",
    "nanochat.NanoChatConfig.NanoChatRotaryEmbedding": "it turns by the negative angle",
}
"""Units that are not equal, and why."""

LEARNED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "mistral_large4.MistralLarge4TextConfig.MistralLarge4TextRotaryEmbedding": (
        "interleaved_to_half",
        lambda module: module.inv_freq * module.alpha.exp(),
    ),
}
"""Layout and frequencies of units whose weights say them: compared with apply_frequencies.

Their configurations say none, so that only the rotation is asked for.
"""

_METHOD = "rotates in a method of its attention"
NOT_CALLED = {
    "clvp.ClvpEncoderConfig.ClvpRotaryPositionalEmbedding": "its function takes v",
    "esmfold2.EsmFold2AtomEncoderConfig.EsmFold2RotaryEmbedding": _METHOD,
    "hunyuan_vl.HunYuanVLTextConfig.HunYuanVLRotaryEmbedding": (
        "is no rotation where it has mrope_section, and fails where it has none"
    ),
    "seamless_m4t.SeamlessM4TConfig.SeamlessM4TConformerRotaryPositionalEmbedding": _METHOD,
    "wav2vec2_bert.Wav2Vec2BertConfig.Wav2Vec2BertRotaryPositionalEmbedding": _METHOD,
    "wav2vec2_conformer.Wav2Vec2ConformerConfig.Wav2Vec2ConformerRotaryPositionalEmbedding": (
        _METHOD
    ),
}
"""Units whose rotation no function with (q, k, cos, sin) does."""
