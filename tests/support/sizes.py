"""Sizes that the classes of transformers have where a configuration leaves them out.

``python tests/support/sizes.py`` prints the rows of ``rope_xp/hf/_sizes.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from rope_xp.hf import _table, _text_models, _vision_models

KEYS = ("num_attention_heads", "hidden_size", "max_position_embeddings", "num_hidden_layers")

TIED = ("dots3_note_audio_encoder", "gradium_phonon_tts", "pocket_tts")
"""Whose sizes must fit each other, so that one alone cannot be varied."""


def rows() -> Iterator[tuple[str, list[int | None]]]:
    """Yield each language model of the table with its sizes, head_dim first."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    vision = {name for names, _ in _vision_models.ROWS for name in names.split()}
    for name in sorted({*_table.MODELS, *_text_models.PLAIN} - vision):
        written = next((n for n in (f"{name}_text", name) if n in CONFIG_MAPPING), None)
        if written is None:
            continue
        kind = CONFIG_MAPPING[written]
        found = kind().to_dict()
        sizes = [found.get(key) for key in KEYS]
        if None not in sizes and "qk_rope_head_dim" not in found and name not in TIED:
            yield name, [head_dim(kind, found), *sizes]


def head_dim(kind: Any, found: dict[str, Any]) -> int | None:
    """Return the components of a head if they are fixed, None if they follow from the width."""
    usual = found.get("head_dim")
    wider = kind(hidden_size=2 * found["hidden_size"]).to_dict().get("head_dim")
    return usual if usual == wider else None


def main() -> None:
    """Print the table."""
    logging.disable(logging.WARNING)
    for name, sizes in rows():
        print("   ", name, *("-" if size is None else size for size in sizes))


if __name__ == "__main__":
    main()
