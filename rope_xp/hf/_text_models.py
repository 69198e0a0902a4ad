"""Rows of the models that read text or sound.

transformers writes only keys that differ from the defaults of its classes, and no layout. Models
with half layout, base 10000 and the whole head rotated are plain. ``tests/support/census.py``
compares every row with the code of transformers.
"""

from dataclasses import replace
from typing import Any

from rope_xp.hf._model import FLAT, Model, Parameters


def _default(base: float, partial: float = 1.0) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": partial}


def _two(full: Parameters | None, sliding: Parameters, **more: Any) -> Model:
    return Model(layers={"full_attention": full, "sliding_attention": sliding}, **more)


def _scaled(rope_type: str, base: float, **more: Any) -> Model:
    return Model(layers={FLAT: {"rope_type": rope_type, "rope_theta": base, **more}})


def _llama3(base: float, factor: float, trained: int, low: float, high: float) -> Model:
    more = {"low_freq_factor": low, "high_freq_factor": high}
    return _scaled("llama3", base, factor=factor, original_max_position_embeddings=trained, **more)


def _yarn(base: float, factor: float, trained: int, **more: Any) -> Model:
    return _scaled("yarn", base, factor=factor, original_max_position_embeddings=trained, **more)


def _base_keys(full: str, sliding: str, first: str = "full_attention") -> dict[str, str]:
    return {first: full, "sliding_attention": sliding}


_PROPORTIONAL = {"rope_type": "proportional"}
_GPT_OSS = _yarn(1.5e5, 32.0, 4096, truncate=False)
_MISTRAL = {"mscale": 1.0, "mscale_all_dim": 1.0}
_SAME_KEY = _base_keys("rope_theta", "rope_theta")
_MOONSHINE = ("hidden_size", "decoder_num_attention_heads")
_FULL = ("full_attention",)
_CONTIGUOUS = Model(base=1e6, sections=(16, 24, 24))
_INTERLEAVED = Model(sections=(24, 20, 20), section_order="interleaved")

# "_text" at the end of a model type may be missing in the first column.
ROWS: tuple[tuple[str, Model], ...] = (
    # --- layout ---
    ("blt_patcher deepseek_v2 roformer", Model("interleaved")),
    ("codegen gptj", Model("interleaved", rotary_dim=64)),
    ("cohere2 cohere2_moe", Model("interleaved", unrotated=_FULL)),
    ("llama4", Model("interleaved", base=5e5, unrotated_every=4)),
    (
        "blt_global_transformer blt_local_decoder blt_local_encoder cohere ernie4_5 ernie4_5_moe",
        Model("interleaved", base=5e5),
    ),
    ("helium", Model("interleaved", base=1e5)),
    ("pe_audio_encoder pe_audio_video_encoder pe_video_encoder", Model("interleaved", base=2e4)),
    ("glm glm4", Model("interleaved", partial=0.5)),
    ("moonshine", Model("interleaved", partial=0.9, width=_MOONSHINE)),
    ("moonshine_streaming", Model("interleaved", partial=0.8)),
    (
        "deepseek_v4",
        Model(
            *("interleaved", 1e4, 0.125, True),
            layers={
                "main": _default(1e4, 0.125),
                "compress": _default(1.6e5, 0.125) | {"attention_factor": 1.0},  # with YaRN too
            },
            base_keys={"main": "rope_theta", "compress": "compress_rope_theta"},
            scaled=("compress",),
        ),
    ),
    ("axk1 axk2 deepseek_v3 deepseek_v32 kimi_k2", Model("interleaved_to_half")),
    ("glm4_moe_lite glm_moe_dsa youtu", Model("interleaved_to_half")),
    ("bailing_hybrid", Model("interleaved_to_half", base=6e6)),
    ("longcat_flash", Model("interleaved_to_half", base=1e7)),
    # --- rotated in part ---
    ("afmoe flint", Model(unrotated=_FULL)),
    ("exaone4 exaone_moe kolibri1", Model(unrotated=_FULL, rotated_without_window=True)),
    ("granitemoehybrid", Model(rotary_if=("position_embedding_type", "rope"))),
    ("zamba2", Model(rotary_if=("use_mem_rope", True))),
    (
        "seamless_m4t wav2vec2-bert wav2vec2-conformer",
        Model(rotary_if=("position_embeddings_type", "rotary")),
    ),
    # --- base ---
    ("nomic_bert", Model(base=1e3)),
    ("jina_embeddings_v3", Model(base=2e4)),
    ("gte", Model(base=1.6e5)),
    ("bitnet csm csm_depth_decoder_model evolla flex_olmo mllama_text_model", Model(base=5e5)),
    ("muse_glimmer_assistant muse_spark", Model(base=5e5)),
    ("emu3_text_model lfm2 lfm2_moe minimax mixtral phimoe solar_open", Model(base=1e6)),
    ("smollm3", Model(base=2e6, unrotated_every=4)),
    ("minimax_m2 minimax_m3_vl", Model(base=5e6)),
    ("hy_v3", Model(base=11158840.0)),
    # --- share of the head ---
    ("bamba glm4_moe nemotron persimmon phi recurrent_gemma", Model(partial=0.5)),
    ("dots3_note_audio_encoder glmasr_encoder", Model(partial=0.5)),
    ("nemotron3_5_transcribe_asr_audio", Model(partial=0.5)),
    ("nemotron3_5_transcribe_word_timestamp", Model(partial=0.5)),
    ("gpt_neox qwen3_next stablelm", Model(partial=0.25)),
    # --- scaling ---
    ("apertus", _llama3(1.2e7, 8.0, 8192, 1.0, 4.0)),
    ("cwm", _llama3(1e6, 16.0, 8192, 1.0, 4.0)),
    ("higgs_audio_v2", _llama3(5e5, 32.0, 1024, 0.125, 0.5)),
    ("gpt_oss", _GPT_OSS),
    ("openai_privacy_filter", replace(_GPT_OSS, layout="interleaved")),
    ("ministral3", _yarn(1e6, 16.0, 16384, **_MISTRAL)),
    (
        "mistral4",
        replace(
            _yarn(1e4, 128.0, 8192, partial_rotary_factor=0.5, **_MISTRAL),
            layout="interleaved_to_half",
        ),
    ),
    # --- layer types ---
    (
        "gemma3 gemma3n t5gemma2 t5gemma2_decoder",
        _two(
            *(_default(1e6), _default(1e4)),
            base_keys=_base_keys("rope_theta", "rope_local_base_freq"),
            scaled=_FULL,
        ),
    ),
    ("embedding_gemma2", _two(_default(1e6), _default(1e4))),
    (
        "diffusion_gemma gemma4 gemma4_unified",
        _two(_default(1e6, 0.25) | _PROPORTIONAL, _default(1e4)),
    ),
    ("lfm3", _two(_default(1e6, 0.5) | _PROPORTIONAL, _default(1e4))),
    ("olmo3", _two(_default(5e5), _default(5e5), base_keys=_SAME_KEY, scaled=_FULL)),
    (
        "modernbert modernbert-decoder",
        _two(
            *(_default(1.6e5), _default(1e4)),
            base_keys=_base_keys("global_rope_theta", "local_rope_theta"),
            scaled=("full_attention", "sliding_attention"),
        ),
    ),
    ("ultrabert", _two(_default(2.56e6), _default(1e4), base_keys=_SAME_KEY)),
    ("step3p5", _two(*[{"rope_theta": 1e4}] * 2, base_keys=_SAME_KEY, scaled=_FULL)),
    ("mellum", _two(_default(5e5), _default(1e4))),
    ("laguna", _two(_default(5e5, 0.5), _default(1e4))),
    (
        "mimo_v2_flash",
        _two(
            *(_default(5e6, 0.334), _default(1e4, 0.334)),
            base_keys=_base_keys("rope_theta", "swa_rope_theta"),
        ),
    ),
    ("beam", _two(None, _default(1e4))),
    ("zaya", Model(layers={"hybrid": _default(5e6, 0.5), "hybrid_sliding": _default(1e4, 0.5)})),
    (
        "dots3_note",
        Model(
            "interleaved_to_half",
            layers={"indexed_attention": _default(8e7), "sliding_attention": _default(5e4)},
            base_keys=_base_keys("rope_theta", "swa_rope_theta", "indexed_attention"),
            scaled=("indexed_attention", "sliding_attention"),
        ),
    ),
    # --- M-RoPE: positions of time, height and width ---
    ("qwen2_vl qwen2_5_vl qwen2_5_omni qwen2_5_omni_talker", _CONTIGUOUS),
    ("paddleocr_vl", replace(_CONTIGUOUS, base=5e5)),
    ("glm4v glm_ocr", Model("interleaved", sections=(8, 12, 12))),
    ("glm_image", Model(sections=(8, 12, 12))),
    ("glm4v_moe", Model(partial=0.5, sections=(8, 12, 12))),
    ("cohere_compass qwen3_omni_moe_talker", _INTERLEAVED),
    ("qwen3_vl qwen3_vl_moe", replace(_INTERLEAVED, base=5e5)),
    ("qwen3_omni_moe", replace(_INTERLEAVED, base=1e6)),
    ("cosmos3_edge", replace(_INTERLEAVED, base=1e8)),
    ("qwen4_exp", replace(_INTERLEAVED, sections=(11, 11, 10))),
    ("qwen3_5 qwen3_5_moe", replace(_INTERLEAVED, partial=0.25, sections=(11, 11, 10))),
    ("ernie4_5_vl_moe", Model("interleaved", 5e5, sections=(22, 22, 20), section_order="ernie")),
    ("hunyuan_vl", Model(section_order="across")),
)

_PLAIN = """
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
"""
PLAIN = frozenset(_PLAIN.split())
"""Model types that were checked and need no row."""

_SIZES = """
    bamba=4096/32 cohere_compass=8192/64 cosmos3_edge=128 ernie4_5_vl_moe=2560/20 glm=128
    glm4=128 glm4_moe=4096/96 glm4v=4096/32 glm4v_moe=4096/96 glm_image=4096/32 glm_ocr=1024/16
    glmasr_encoder=1280/20 gpt_neox=6144/64 laguna=128 mimo_v2_flash=192
    moonshine_streaming=320/8 nemotron=6144/48 nemotron3_5_transcribe_asr_audio=1280/10
    nemotron3_5_transcribe_word_timestamp=1280/16 paddleocr_vl=128 persimmon=4096/64 phi=2048/32
    qwen2_5_omni=3584/28 qwen2_5_omni_talker=128 qwen2_5_vl=8192/64 qwen2_vl=8192/64 qwen3_5=256
    qwen3_5_moe=256 qwen3_next=256 qwen3_omni_moe=2048/28 qwen3_omni_moe_talker=1024/16
    qwen3_vl=128 qwen3_vl_moe=2048/16 qwen4_exp=256 stablelm=2560/32 zaya=128
"""


def _sizes(text: str) -> dict[str, int]:
    width, _, heads = text.partition("/")
    if not heads:
        return {"head_dim": int(width)}
    return {"hidden_size": int(width), "num_attention_heads": int(heads)}


SIZES = {name: _sizes(text) for name, text in (row.split("=") for row in _SIZES.split())}
"""Default head_dim, or width and heads, of models whose rotation depends on them."""
