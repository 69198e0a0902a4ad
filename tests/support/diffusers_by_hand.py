"""Rotary modules of diffusers that patching leaves, each with the RoPE that makes its tables.

Of some no table is returned; then it is taken from where the module keeps it, or rotates by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from rope_xp import RoPE, positions, scaling

_CPU = torch.device("cpu")
_TOKENS = 7
_LINE = np.arange(_TOKENS)
_ROWS = np.stack([_LINE, _LINE + 2, _LINE * 3])


class Hand(NamedTuple):
    """A module, its tables (tokens, r/2), and what rope_xp makes them of."""

    fields: dict[str, Any]
    theirs: Callable[[Any], tuple[Any, Any]]
    rope: RoPE
    positions: Any
    bound: float = 1e-5
    """Of its own angles, which are float32."""


@dataclass(frozen=True)
class Given(scaling.Scaling):
    """A scaling rule that is a list of frequencies."""

    series: tuple[float, ...]

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.array(self.series)


def _angles(module: Any) -> tuple[Any, Any]:
    angles = module(_TOKENS, _CPU)[:, :4]
    return angles.cos(), angles.sin()


def _all_axes(table: Any) -> tuple[Any, Any]:
    """Return the start of a table that holds each position on all axes."""
    return table[:_TOKENS].real, table[:_TOKENS].imag


def _ltx_rope(steps: int) -> RoPE:
    """Return frequencies that rise, dealt out to three axes, behind a pair that never turns."""
    rising = [10000.0 ** (j / (steps - 1)) * math.pi / 2 for j in range(steps)]
    series = (0.0, *(f for f in rising for _ in range(3)))
    return RoPE(position_axes=(0, *((0, 1, 2) * steps)), scaling=Given(series))


_COORDINATES = torch.tensor([[3.0, 7.5, 12.0], [64.0, 512.0, 1800.0], [100.0, 3.0, 2000.0]])[None]
_FRACTIONS = 2 * _COORDINATES[0].double().numpy() / [[20.0], [2048.0], [2048.0]] - 1


def _hand_ltx(compute: Callable[[Any], Any]) -> Hand:
    """Angles reach 15,708 in float32, which is all that the modules know."""
    return Hand(
        {"dim": 20},
        lambda m: tuple(table[0, :, ::2] for table in compute(m)),  # type: ignore[arg-type, return-value]  # two
        _ltx_rope(3),
        _FRACTIONS,
        5e-3,
    )


def _mask_of_image(module: Any) -> tuple[Any, Any]:
    # Two tokens of text, an image of 2 x 3, and one more of text.
    mask = torch.tensor([False] * 2 + [True] * 6 + [False])
    table = module([(1, 2, 3)], mask, _CPU)
    return table.real, table.imag


def _around_an_image() -> np.ndarray:
    image = positions.video(1, 2, 3, start=(2, 0, 0), centre=True)
    return np.concatenate([positions.text(2, 3), image, positions.text(1, 3, start=5)], axis=1)


def _of_decoder(module: Any) -> tuple[Any, Any]:
    """Return the tables by which it rotates x: what it makes of ones and zeros."""
    x = torch.zeros(1, 2, 3, 2, 1, 16)
    x[..., ::2] = 1.0
    y = module(x).reshape(12, 16)
    return y[:, ::2], y[:, 1::2]


_DEALT = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0)
_LONG = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
_WAN = {"attention_head_dim": 16, "patch_size": (1, 2, 2), "max_seq_len": 32}
_THIRDS = RoPE.axial((8, 4, 4))

BY_HAND: dict[str, Hand] = {
    "transformer_stable_audio3.StableAudio3RotaryEmbedding": Hand(
        {"dim": 8}, _angles, RoPE(), _LINE
    ),
    "autoencoder_same.RotaryEmbedding": Hand({"dim": 8}, _angles, RoPE(), _LINE),
    "condition_embedder_anima.AnimaRotaryEmbedding": Hand(
        {"head_dim": 8},
        lambda m: tuple(t[0, :, :4] for t in m(torch.zeros(1), torch.arange(_TOKENS)[None])),
        RoPE(),
        _LINE,
    ),
    "autoencoder_kl_minimax_h3.MiniMaxH3VideoRotaryPosEmbed": Hand(
        {"dim": 12},
        lambda m: tuple(
            t[0, :, 0, :6] for t in m(torch.tensor([[[-1.0, 0.25, 0.5], [0.0, -0.75, 1.0]]]))
        ),
        RoPE.axial((4, 4, 4), base=100.0),
        2 * np.pi * np.array([[-1.0, 0.0], [0.25, -0.75], [0.5, 1.0]]),
    ),
    "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding": Hand(
        {"head_dim": 24, "rope_theta": 5e6, "rope_axes_dim": (6, 3, 3)},
        lambda m: tuple(
            t[0, :, :12] for t in m(torch.from_numpy(_ROWS)[:, None], _CPU, torch.float32)
        ),
        RoPE(base=5e6, position_axes=_DEALT),
        _ROWS,
    ),
    "transformer_omnigen.OmniGenSuScaledRotaryEmbedding": Hand(
        {"dim": 8, "rope_scaling": _LONG},
        lambda m: tuple(t[:, :4] for t in m(torch.zeros(1), torch.arange(_TOKENS)[None])),
        RoPE(
            scaling=scaling.LongRoPE(
                (1.0, 1.5, 2.0, 2.5), (2.0, 3.0, 4.0, 5.0), 4096, factor=32.0
            ).for_length(_TOKENS)
        ),
        _LINE,
    ),
    "transformer_qwenimage21.QwenImage21Rope": Hand(
        {"theta": 10000, "axes_dim": [4, 6, 6]},
        _mask_of_image,
        RoPE.axial((4, 6, 6)),
        _around_an_image(),
    ),
    "transformer_anyflow.AnyFlowRotaryPosEmbed": Hand(
        _WAN, lambda m: _all_axes(m._build_freqs(_CPU)), _THIRDS, [_LINE] * 3
    ),
    "transformer_anyflow_far.AnyFlowCausalRotaryPosEmbed": Hand(
        {**_WAN, "compressed_patch_size": (1, 4, 4)},
        lambda m: _all_axes(m._build_freqs(_CPU)),
        _THIRDS,
        [_LINE] * 3,
    ),
    "transformer_sana_wm.SanaWMRotaryPosEmbed": Hand(
        _WAN, lambda m: _all_axes(m.freqs), _THIRDS, [_LINE] * 3
    ),
    "transformer_kandinsky6.Kandinsky6RoPE1D": Hand(
        {"dim": 8, "freqs_scaling": 0.5},
        lambda m: (m.angles[:_TOKENS].cos(), m.angles[:_TOKENS].sin()),
        RoPE(scaling=scaling.Linear(2.0)),
        _LINE,
    ),
    "ltx2_diffusion_decoder.LTX2VideoVaeRotaryPosEmbed3D": Hand(
        {"head_dim": 16}, _of_decoder, RoPE.axial((4, 6, 6)), positions.video(2, 3, 2)
    ),
    "transformer_ltx.LTXVideoRotaryPosEmbed": _hand_ltx(
        lambda m: m(torch.zeros(1, 3, 20), video_coords=_COORDINATES)
    ),
    "transformer_ltx2.LTX2AudioVideoRotaryPosEmbed": _hand_ltx(lambda m: m(_COORDINATES)),
    "transformer_sana_wm_refiner.SanaWMLTX2AudioVideoRotaryPosEmbed": _hand_ltx(
        lambda m: m(_COORDINATES)
    ),
}
