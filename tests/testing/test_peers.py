"""No false alarm over the rotations of other libraries: their code, or their formulae anew."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.peers import ROWS, keras_hub, torchtune, yarn

from rope_xp import RoPE, scaling
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._compare import list_differences

TORCH, NUMPY = torch.zeros(1), np.zeros(1, np.float32)


class Peer(NamedTuple):
    function: Callable[..., Any]
    rope: RoPE
    axes: str = "bshd"
    like: Any = TORCH
    refuses: bool = False
    """Whether its table ends at 131072 positions."""


PEERS = {
    "torchtune": Peer(torchtune, RoPE(), refuses=True),
    "keras-hub": Peer(keras_hub, RoPE(layout="half", scaling=scaling.Linear(4.0)), like=NUMPY),
    "yarn": Peer(yarn, RoPE(layout="half", scaling=scaling.YaRN(16.0, 4096)), "bhsd"),
}


def check(result, rope, refuses=False):
    """Check that a RoPE was found, without a fault and as exact as products in float32 are."""
    assert list_differences(replace(result.rope, scaling=rope.scaling), rope, 64) == []
    assert type(result.rope.scaling) is type(rope.scaling)
    assert result.frequencies == pytest.approx(rope.frequencies(64), rel=1e-6)
    assert result.faults == ()
    assert result.error[4096] < 5e-3
    assert bool([n for n in result.notes if "are rejected" in n]) == refuses


@pytest.mark.parametrize("name", PEERS)
def test_formulae_of_other_libraries_have_no_fault(name):
    function, rope, axes, like, refuses = PEERS[name]
    check(identify(function, 64, axes=axes, like=like), rope, refuses)
    positions = (0, 5, 4097, ROWS - 1 if refuses else 2 * ROWS)
    assert_rotates(function, rope, 64, axes=axes, positions=positions, like=like)


@pytest.mark.parametrize(
    ("options", "rope"),
    [
        ({"theta": 5e5}, RoPE(base=5e5)),
        ({"theta_rescale_factor": 8.0}, RoPE(scaling=scaling.NTK(8.0))),
        ({"learned_freq": True}, RoPE()),  # as they are before they learn
        ({"use_xpos": True}, None),  # its factor is relative to the middle of a call
    ],
    ids=str,
)
def test_rotary_embedding_torch_has_no_fault_but_xpos(options, rope):
    library = pytest.importorskip("rotary_embedding_torch")
    module = library.RotaryEmbedding(64, cache_if_possible=False, **options)

    def function(x, positions):
        angles, p = module.forward(positions.float()), positions.float()
        return library.apply_rotary_emb(angles, x, scale=1.0 if rope else module.get_scale(p))

    if rope is not None:
        check(identify(function, 64, like=TORCH), rope)
        return
    with pytest.raises(ValueError, match="turned differently with and without"):
        identify(function, 64, like=TORCH)
