"""What the names that other libraries use are called here. Read when a call has one of them."""

_BASE = "base"
_SLICE = "rotary_dim, if only a part of a head is rotated; head_dim is read off the arrays"
_SHARE = "rotary_dim, a number of components: that share of head_dim"
_LAYOUT = "layout='interleaved', or layout='half'"
_START = "part of positions: apply(q, k, offset + arange(tokens))"
_LENGTH = "not needed: no table is made, and any position below 2**31 is exact"
_POSITIONS = "positions, the third argument of apply"
_TABLES = "a table: rope_xp.apply_tables(x, cos, sin, layout=...) rotates by it"
_FREQUENCIES = (
    "made of base and scaling; rope_xp.apply_frequencies(q, k, positions, frequencies, layout=...) "
    "rotates by others"
)
_RULE = (
    "scaling, a rule of rope_xp.scaling; rope_xp.from_hf_config(config) makes it of a config.json"
)
_FACTOR = (
    "a field of a rule: scaling=rope_xp.scaling.Linear(factor), NTK(factor), YaRN(factor, ...)"
)
_AXES = "said by axes, one letter an axis: apply(q, k, positions, axes='bhsd')"
_HEADS = "read off the arrays"
_ARRAYS = "that of q and k; angles are computed in float32, of float64 arrays in float64"
_CALL = "an argument of apply, and not a field of a RoPE"
_PACKED = "positions=rope_xp.positions.packed(cu_seqlens)"
_SECTIONS = "said by position_axes; rope_xp.RoPE.axial(sections) makes it"

MEANT = {
    **dict.fromkeys(
        ("theta", "rope_theta", "rotary_base", "rotary_emb_base", "max_wavelength", "wavelength"),
        _BASE,
    ),
    **dict.fromkeys(
        ("dim", "head_dim", "d", "dims", "d_head", "head_size", "embedding_size", "rope_dim"),
        _SLICE,
    ),
    **dict.fromkeys(("rotary_emb_dim", "rotary_ndims", "qk_rope_head_dim"), "rotary_dim"),
    **dict.fromkeys(
        ("partial_rotary_factor", "rotary_percent", "rotary_pct", "rope_percent"), _SHARE
    ),
    **dict.fromkeys(
        ("interleaved", "rotary_interleaved", "rope_interleave", "interleave"), _LAYOUT
    ),
    "is_neox_style": "layout='half' if true, else layout='interleaved'",
    "is_neox": "layout='half' if true, else layout='interleaved'",
    "traditional": "layout='interleaved' if true, else layout='half'",
    "rotate_half": "layout='half'",
    **dict.fromkeys(
        ("offset", "offsets", "seqlen_offset", "seqlen_offsets", "start_index", "start_pos"), _START
    ),
    **dict.fromkeys(("past_key_values_length", "cache_position"), _START),
    **dict.fromkeys(
        ("position_ids", "input_pos", "pos", "position", "position_id", "t"), _POSITIONS
    ),
    **dict.fromkeys(
        ("seq_len", "seqlen", "max_seq_len", "max_seqlen", "max_position_embeddings"), _LENGTH
    ),
    **dict.fromkeys(
        ("max_position", "max_positions", "max_seq_length", "cache_max_seq_len", "length"), _LENGTH
    ),
    **dict.fromkeys(("cos", "sin", "freqs_cis", "cos_sin_cache", "rope_cache"), _TABLES),
    **dict.fromkeys(
        ("inv_freq", "inv_freqs", "freqs", "frequencies", "custom_freqs", "learned_freq"),
        _FREQUENCIES,
    ),
    **dict.fromkeys(("rope_scaling", "rope_type", "rope_parameters", "rope_init_fn"), _RULE),
    **dict.fromkeys(
        ("scaling_factor", "factor", "interpolate_factor", "theta_rescale_factor", "scale_factor"),
        _FACTOR,
    ),
    **dict.fromkeys(
        ("unsqueeze_dim", "seq_dim", "sequence_axis", "feature_axis", "tensor_format"), _AXES
    ),
    **dict.fromkeys(("seq_before_head_dim", "transpose"), _AXES),
    **dict.fromkeys(("num_heads", "n_heads", "num_kv_heads", "num_key_value_heads"), _HEADS),
    **dict.fromkeys(("dtype", "device"), _ARRAYS),
    **dict.fromkeys(("positions", "axes", "k_positions", "out"), _CALL),
    "cu_seqlens": _PACKED,
    "inplace": "out=(q, k)",
    "inverse": "another call: RoPE.unrotate",
    "conjugate": "another call: RoPE.unrotate",
    **dict.fromkeys(("mrope_section", "sections", "axes_dim"), _SECTIONS),
    **dict.fromkeys(
        ("attention_factor", "attention_scaling", "mscale"),
        "a field of rules that have one, such as rope_xp.scaling.YaRN",
    ),
}
"""A name of another library, and what to write instead of it."""


def hints(unknown: list[str]) -> str:
    """Return what names that are not known stand for, or nothing."""
    said: dict[str, list[str]] = {}
    for name in unknown:
        if name in MEANT:
            said.setdefault(MEANT[name], []).append(name)
    return "".join(
        f"; {', '.join(names)} {'are' if len(names) > 1 else 'is'} {meaning}"
        for meaning, names in said.items()
    )
