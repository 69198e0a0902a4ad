"""The table of model types that were checked.

transformers writes only keys that differ from the defaults of its classes, and no layout.
``tests/support/census.py`` compares every row with the code of transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_xp.hf._attention import ATTENTION
from rope_xp.hf._keys import FLAT, TRAINED, LayerType, Model


def _list_types(**rows: tuple[Any, ...] | None) -> Mapping[str, LayerType | None]:
    return {label: None if row is None else LayerType(*row) for label, row in rows.items()}


def _pair(full: tuple[Any, ...] | None, sliding: tuple[Any, ...]) -> Model:
    return Model(layers=_list_types(full_attention=full, sliding_attention=sliding))


def _scale(rope_type: str, base: float, factor: float, trained: int, **others: Any) -> Model:
    parameters = {"rope_type": rope_type, "factor": factor, TRAINED: trained, **others}
    return Model(layers={FLAT: LayerType(base, None, others=parameters)})


_FULL = ("full_attention",)
_GPT_OSS = _scale("yarn", 1.5e5, 32.0, 4096, truncate=False)
_MISTRAL = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
_PROPORTIONAL = (None, False, {"rope_type": "proportional"})
_ROTARY = ("position_embeddings_type", "rotary")
_CONTIGUOUS = Model(base=1e6, sections=(16, 24, 24))
_INTERLEAVED = Model(sections=(24, 20, 20), section_order="interleaved")
_MEMORY = ("hidden_size", "downsample_rate", "num_attention_heads")
_AXIAL = Model("interleaved", axial="blocks")

# "_text" at the end of a model type may be missing in the first column.
_ROWS: dict[str, Model] = {
    "blt_patcher deepseek_v2 roformer": Model("interleaved"),
    "codegen gptj": Model("interleaved", rotary_dim=64),
    "cohere2 cohere2_moe": Model("interleaved", unrotated=_FULL),
    "llama4": Model("interleaved", base=5e5, unrotated_every=4),
    "blt_global_transformer blt_local_decoder blt_local_encoder": Model("interleaved", base=5e5),
    "cohere ernie4_5 ernie4_5_moe": Model("interleaved", base=5e5),
    "helium": Model("interleaved", base=1e5),
    "pe_audio_encoder pe_audio_video_encoder pe_video_encoder": Model("interleaved", base=2e4),
    "glm glm4": Model("interleaved", partial=0.5),
    "moonshine": Model(
        "interleaved", partial=0.9, width=("hidden_size", "decoder_num_attention_heads")
    ),
    "moonshine_streaming": Model("interleaved", partial=0.8),
    "axk1 deepseek_v3 glm4_moe_lite sarvam_mla youtu": Model(
        "interleaved_to_half", reads_interleave=True
    ),
    "axk2 deepseek_v32 glm_moe_dsa kimi_k2": Model("interleaved_to_half"),
    "bailing_hybrid": Model("interleaved_to_half", base=6e6),
    "longcat_flash": Model("interleaved_to_half", base=1e7),
    # --- rotated in part ---
    "afmoe flint lara_mini": Model(unrotated=_FULL),
    "exaone4 exaone_moe kolibri1": Model(unrotated=_FULL, rotated_without_window=True),
    "granitemoehybrid": Model(rotary_if=("position_embedding_type", "rope")),
    "zamba2": Model(rotary_if=("use_mem_rope", True)),
    "seamless_m4t wav2vec2-bert wav2vec2-conformer": Model(rotary_if=_ROTARY),
    "nomic_bert": Model(base=1e3),
    "jina_embeddings_v3": Model(base=2e4),
    "gte": Model(base=1.6e5),
    "bitnet csm csm_depth_decoder_model evolla exaone flex_olmo mllama_text_model": Model(base=5e5),
    "muse_glimmer_assistant muse_spark": Model(base=5e5),
    "emu3_text_model lfm2 lfm2_moe minimax mixtral phimoe solar_open": Model(base=1e6),
    "smollm3": Model(base=2e6, unrotated_every=4),
    "minimax_m2 minimax_m3_vl": Model(base=5e6),
    "sarvam_moe": Model(base=8e6),
    "hy_v3": Model(base=11158840.0),
    "bamba glm4_moe nemotron persimmon phi recurrent_gemma": Model(partial=0.5),
    "dots3_note_audio_encoder glmasr_encoder nemotron3_5_transcribe_asr_audio": Model(partial=0.5),
    "nemotron3_5_transcribe_word_timestamp": Model(partial=0.5),
    "gpt_neox qwen3_next stablelm": Model(partial=0.25),
    "apertus apertus1p5": _scale(
        "llama3", 1.2e7, 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "cwm": _scale("llama3", 1e6, 16.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0),
    "higgs_audio_v2": _scale(
        "llama3", 5e5, 32.0, 1024, low_freq_factor=0.125, high_freq_factor=0.5
    ),
    "gpt_oss": _GPT_OSS,
    "openai_privacy_filter": replace(_GPT_OSS, layout="interleaved"),
    "ministral3": _scale("yarn", 1e6, 16.0, 16384, **_MISTRAL),
    "mistral4": replace(
        _scale("yarn", 1e4, 128.0, 8192, partial_rotary_factor=0.5, **_MISTRAL),
        layout="interleaved_to_half",
        reads_interleave=True,
    ),
    # --- layer types: base, share of the head, top-level key of the base, takes flat parameters ---
    "gemma3 gemma3n t5gemma2 t5gemma2_decoder": _pair(
        (1e6, 1.0, "rope_theta", True), (1e4, 1.0, "rope_local_base_freq")
    ),
    "dory": _pair((1e7,), (1e4,)),
    "embedding_gemma2": _pair((1e6,), (1e4,)),
    "diffusion_gemma gemma4 gemma4_unified": _pair((1e6, 0.25, *_PROPORTIONAL), (1e4,)),
    "lfm3": _pair((1e6, 0.5, *_PROPORTIONAL), (1e4,)),
    "olmo3": _pair((5e5, 1.0, "rope_theta", True), (5e5, 1.0, "rope_theta")),
    "modernbert modernbert-decoder": _pair(
        (1.6e5, 1.0, "global_rope_theta", True), (1e4, 1.0, "local_rope_theta", True)
    ),
    "ultrabert": _pair((2.56e6, 1.0, "rope_theta"), (1e4, 1.0, "rope_theta")),
    "step3p5": _pair((1e4, None, "rope_theta", True), (1e4, None, "rope_theta")),
    "mellum": _pair((5e5,), (1e4,)),
    "laguna": _pair((5e5, 0.5), (1e4,)),
    "mimo_v2_flash": _pair((5e6, 0.334, "rope_theta"), (1e4, 0.334, "swa_rope_theta")),
    "beam": _pair(None, (1e4,)),
    "zaya": Model(layers=_list_types(hybrid=(5e6, 0.5), hybrid_sliding=(1e4, 0.5))),
    "dots3_note": Model(
        "interleaved_to_half",
        layers=_list_types(
            indexed_attention=(8e7, 1.0, "rope_theta", True),
            sliding_attention=(5e4, 1.0, "swa_rope_theta", True),
        ),
    ),
    "deepseek_v4": Model(
        "interleaved",
        partial=0.125,
        trailing=True,
        layers=_list_types(
            main=(1e4, 0.125, "rope_theta"),
            # Its attention factor is 1 with YaRN too.
            compress=(1.6e5, 0.125, "compress_rope_theta", True, {"attention_factor": 1.0}),
        ),
    ),
    # --- M-RoPE: positions of time, height and width ---
    "qwen2_vl qwen2_5_vl qwen2_5_omni qwen2_5_omni_talker": _CONTIGUOUS,
    "paddleocr_vl": replace(_CONTIGUOUS, base=5e5),
    "glm4v glm_ocr": Model("interleaved", sections=(8, 12, 12)),
    "glm_image": Model(sections=(8, 12, 12)),
    "glm4v_moe": Model(partial=0.5, sections=(8, 12, 12)),
    "cohere_compass qwen3_omni_moe_talker": _INTERLEAVED,
    "qwen3_vl qwen3_vl_moe": replace(_INTERLEAVED, base=5e5),
    "qwen3_omni_moe": replace(_INTERLEAVED, base=1e6),
    "cosmos3_edge": replace(_INTERLEAVED, base=1e8),
    "qwen4_exp": replace(_INTERLEAVED, sections=(11, 11, 10)),
    "qwen3_5 qwen3_5_moe": replace(_INTERLEAVED, partial=0.25, sections=(11, 11, 10)),
    "ernie4_5_vl_moe": Model("interleaved", 5e5, sections=(22, 22, 20), section_order="ernie"),
    "hunyuan_vl": Model(section_order="across"),
    "hy_v4_vl": Model("interleaved", sections=(12, 10, 10), section_order="interleaved"),
    # --- images: positions of height (row) and width (column) ---
    # In transformers 5 their configurations have rope_type "axial"; older files have none.
    """
    cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision
    glm4v_vision glm4v_moe_vision glm5_next_vision glm_ocr_vision mlcd_vision_model
    muse_glimmer_vision muse_spark_vision paddleocr_vl_vision qwen2_5_omni_vision_encoder
    qwen2_5_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder
    qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision video_llama_3_vision
    """: Model(axial="blocks"),
    "qwen2_vl_vision": Model(axial="blocks", width=("embed_dim", "num_heads")),
    "lfm3_vl_vision": Model(axial="blocks", base=1e6),
    "dinov3_vit eomt_dinov3 sapiens2": Model(axial="blocks", base=100.0),
    "step3p5_vision": Model(axial="blocks", components=(1, 0)),
    "kimi_k25_vision": Model(axial="alternating", components=(1, 0)),
    "pixtral": Model(axial="strided"),
    "minimax_m3_vl_vision": Model(axial="blocks", components=(0, 1, 2)),
    "inkling2_vision llama4_vision_model": replace(_AXIAL, components=(1, 0)),
    "sam3_vit_model": _AXIAL,
    "edgetam_video sam2_video sam3_tracker_video": replace(
        _AXIAL, width=tuple("memory_attention_" + key for key in _MEMORY)
    ),
    # It rotates all channels before they are split into heads.
    "efficientloftr": Model("interleaved", axial="alternating", width=("hidden_size",)),
    "neomme": replace(_pair((1e6, 0.25), (1e4, None)), section_order="rows and columns"),
    # --- nothing but defaults ---
    """
    arcee aria chameleon dbrx deepseek_ocr2 deepseek_ocr2_encoder dia_decoder dia_encoder
    diffllama doge dots1 esm esmc eurobert falcon falcon_h1 gemma gemma2 gpt_neox_japanese
    gradium_phonon_tts granite granite4_vision granite_docling granite_swa granitemoe
    granitemoe_swa granitemoeshared hrm hunyuan_v1_dense hunyuan_v1_moe hy_v4 hyperclovax
    idefics jais2 jetmoe kyutai_speech_to_text lasr_encoder llama mimi minicpm3 ministral
    mistral molmo2 moshi muse_glimmer nemotron3_diarization_audio neucodec olmo olmo2
    olmo_hybrid olmoe phi3 phi4_multimodal pocket_tts pocket_tts_audio_tokenizer qwen2
    qwen2_5_omni_dit qwen2_moe qwen3 qwen3_moe qwen3_omni_moe_talker_code_predictor seed_oss
    starcoder2 t5_gemma_module timesfm2_5 unlimited_ocr vaultgemma voxtral_realtime
    voxtral_realtime_encoder xcodec2
    """: Model(),
}

_SIZES = """
    afmoe=128 bamba=4096/32 beam=128 cohere2_moe=128 cohere_compass=8192/64 cosmos3_edge=128 cwm=128
    deepseek_v4=512 dia_decoder=128 dia_encoder=128 diffusion_gemma=256 dory=256
    embedding_gemma2=256 ernie4_5=128 ernie4_5_vl_moe=2560/20 flint=128 gemma2=256 gemma3=256
    gemma3n=256 gemma4=256 gemma4_unified=256 gemma=256 glm4=128 glm4_moe=4096/96 glm4v=4096/32
    glm4v_moe=4096/96 glm=128 glm_image=4096/32 glm_ocr=1024/16 glmasr_encoder=1280/20
    gpt_neox=6144/64 gpt_oss=64 helium=128 higgs_audio_v2=128 hrm=128 hy_v3=128 jetmoe=128
    kolibri1=128 laguna=128 lara_mini=128 lfm3=128 llama4=128 mellum=128 mimo_v2_flash=192
    minimax_m2=128 minimax_m3_vl=128 ministral3=128 molmo2=128 moonshine_streaming=320/8
    muse_glimmer=128 muse_glimmer_assistant=128 muse_spark=64
    nemotron3_5_transcribe_asr_audio=1280/10 nemotron3_5_transcribe_word_timestamp=1280/16
    nemotron=6144/48 neomme=64 neucodec=64 openai_privacy_filter=64 paddleocr_vl=128
    pe_audio_encoder=128 pe_audio_video_encoder=128 pe_video_encoder=128 persimmon=4096/64
    phi=2048/32 qwen2_5_omni=3584/28 qwen2_5_omni_dit=64 qwen2_5_omni_talker=128 qwen2_5_vl=8192/64
    qwen2_vl=8192/64 qwen3=128 qwen3_5=256 qwen3_5_moe=256 qwen3_next=256 qwen3_omni_moe=2048/28
    qwen3_omni_moe_talker=1024/16 qwen3_omni_moe_talker_code_predictor=128 qwen3_vl=128
    qwen3_vl_moe=2048/16 qwen4_exp=256 sarvam_moe=64 seed_oss=128 solar_open=128 stablelm=2560/32
    step3p5=128 t5_gemma_module=256 t5gemma2=256 t5gemma2_decoder=256 timesfm2_5=80 vaultgemma=256
    voxtral_realtime_encoder=64 xcodec2=64 zaya=128
"""
"""Default head_dim where it is not the width over the heads, or width and heads."""


def _parse_sizes(text: str) -> dict[str, int]:
    names = ("hidden_size", "num_attention_heads") if "/" in text else ("head_dim",)
    return dict(zip(names, map(int, text.split("/")), strict=True))


_SHARES = """
    codegen diffusion_gemma dots3_note dots3_note_audio_encoder dots3_note_vision_encoder
    efficientloftr glm4_moe_lite glm4v glm4v_vision glm4v_moe glm4v_moe_vision glm_image glm_ocr
    glm_ocr_vision gpt_neox_japanese gptj laguna mellum mimo_v2_flash minimax_m2 minimax_m3_vl
    minimax_m3_vl_vision nemotron3_diarization_audio neomme phi3 phi4_multimodal qwen3_5_moe_vision
    qwen3_5_vision qwen4_exp qwen4_exp_vision sarvam_moe solar_open step3p5 step3p5_vision zaya
"""
"""Types whose code reads a share, which is 1 by default. Others rotate whole heads."""

_TYPE_SIZES = {name: _parse_sizes(text) for name, text in (r.split("=") for r in _SIZES.split())}
MODELS = {
    name: replace(
        row,
        sizes=_TYPE_SIZES.get(name, {}),
        reads_share=row.partial != 1.0 or name in _SHARES.split(),
        **ATTENTION.get(name, {}),
    )
    for names, row in _ROWS.items()
    for name in names.split()
}

UNSUPPORTED = {
    "gemma4_vision": "it rotates two slices of a head; use one RoPE for each, with rotary_offset",
    "mistral_large4": (
        "its frequencies are learned, and in the weights: exp(alpha) * inv_freq of its rotary "
        "embedding, for rope_xp.apply_frequencies"
    ),
    "musicflamingo": "its angles are products of two positions",
    "kimi_linear": "it has no rotary embedding, though its keys are named for one",
    "nemotron_h": "it has no rotary embedding, though its keys are named for one",
    "nanochat": "it rotates by the negative angle; use RoPE(layout='half') and unrotate",
    "clvp_encoder": "it rotates v as well, by components that projection_dim gives",
}
"""Model types that no RoPE can express, and what to do."""


def get_row(model_type: object) -> Model | None:
    name = str(model_type)
    return MODELS.get(name) or MODELS.get(name.removesuffix("_text"))
