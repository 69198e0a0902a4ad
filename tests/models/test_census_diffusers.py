"""Every rotary module of diffusers, and every method that rotates: equal, or left with a reason."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch
from support import diffusers_census as census
from support.diffusers_by_hand import BY_HAND

from rope_xp import RopeConfigError, RopeError
from rope_xp.integrations._diffusion import conventions, models, rotations, sites
from rope_xp.integrations._diffusion.embeddings import EMBEDDINGS
from rope_xp.integrations.diffusers import from_config

# Of what cos and sin are, by mpmath: as all tables of float32.
TABLES = 1e-6
# Of what a module makes itself: angles of float32, of positions below 100.
OWN = 1e-5
# They are given latents, and count their patches.
COUNTING = [
    name
    for name in census.SMALL
    if re.search("Wan|SkyReels|Chrono|HunyuanVideo[R1]|HunyuanI|Motif|Cosmos|View4|Glm|Easy", name)
]


@cache
def small(name: str) -> tuple[Any, Any]:
    """Return a small rotary module and its RoPE."""
    made = census.SMALL[name]
    module = census.embeddings()[name](**made.fields)
    row = EMBEDDINGS[type(module).__name__]
    return module, from_config(made.config).rope if row.rope is None else row.rope(module)


def test_all_rotary_modules_are_listed() -> None:
    lists = (census.SMALL, census.NO_PAIRS, census.LEFT_EMBEDDINGS)
    listed = [name for each in lists for name in each]
    assert sorted(listed) == sorted(census.embeddings())
    rotating = len(census.SMALL) + len(census.LEFT_EMBEDDINGS)
    assert len(census.SMALL) / rotating > 0.72  # by patch
    assert set(BY_HAND) == set(census.LEFT_EMBEDDINGS)  # and the rest by a RoPE


@pytest.mark.parametrize("name", census.SMALL)
def test_tables_are_those_of_the_module(name: str) -> None:
    module, rope = small(name)
    row = EMBEDDINGS[type(module).__name__]
    arguments, named = row.probe(module, rope)
    theirs = torch.utils._pytree.tree_leaves(getattr(module, row.method)(*arguments, **named))
    ours = torch.utils._pytree.tree_leaves(row.made(rope, module, *arguments, **named))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert torch.allclose(mine, other.to(mine.dtype), rtol=0, atol=OWN)
        assert mine.dtype in (torch.float32, torch.complex64)


@pytest.mark.parametrize("name", census.SMALL)
def test_tables_are_those_of_the_formula(name: str) -> None:
    made, (_, rope) = census.SMALL[name], small(name)
    axes = len(made.sections) if rope.scaling is not None else 1
    series = [
        [mpmath.mpf(base) ** (-mpmath.mpf(2 * j) / n) for j in range(n // 2)]
        for n, base in zip(made.sections, made.bases, strict=True)
    ]
    frequencies = [(axis, f) for axis in range(axes) for f in series[axis]]
    components = 0 if rope.position_axes is None else 1 + max(rope.position_axes)
    line = [0, 1, 63, 999, 100_003, 1_000_000]
    shifted = [[p + 7 * c for p in line] for c in range(max(components, 1))]
    cos, sin = rope.cos_sin(shifted if components else shifted[0], sum(made.sections))
    for pair, (axis, frequency) in enumerate(frequencies):
        axis = rope.position_axes[pair] if components else axis  # noqa: PLW2901  # M-RoPE deals
        for token, p in enumerate(shifted[axis]):
            with mpmath.workdps(30):
                angle = p * frequency
                expected = float(mpmath.cos(angle)), float(mpmath.sin(angle))
            assert abs(cos[token, pair] - expected[0]) < TABLES
            assert abs(sin[token, pair] - expected[1]) < TABLES


@pytest.mark.parametrize("name", BY_HAND)
def test_tables_that_are_left_are_those_of_a_rope(name: str) -> None:
    hand = BY_HAND[name]
    module = census.embeddings()[name](**hand.fields)
    theirs = [np.asarray(table) for table in hand.theirs(module)]
    pairs = theirs[0].shape[-1]
    at = np.asarray(hand.positions, np.float64)
    frequencies = hand.rope.frequencies(2 * pairs)
    axes = hand.rope.position_axes
    angles = (at[list(axes)].T if axes else at[:, None]) * frequencies
    exact = [
        hand.rope.attention_factor * np.cos(angles),
        hand.rope.attention_factor * np.sin(angles),
    ]
    # Those of LTX turn by up to 15,708: as exact as this in float64 alone.
    dtype = np.float64 if frequencies.max() > 1 else np.float32
    for mine, other, true in zip(
        hand.rope.cos_sin(at, 2 * pairs, dtype=dtype), theirs, exact, strict=True
    ):
        np.testing.assert_allclose(mine, true, rtol=0, atol=TABLES)
        np.testing.assert_allclose(mine, other, rtol=0, atol=hand.bound)


def test_all_methods_that_rotate_are_listed() -> None:
    found = census.methods()
    left = {*census.NO_ROTATION, *census.LEFT_METHODS}
    assert left <= set(found)
    rotating = [name for name in found if name not in census.NO_ROTATION]
    assert 1 - len(census.LEFT_METHODS) / len(rotating) >= 0.95


def _recognised(name: str) -> list[tuple[sites.Site, dict[Any, conventions.Convention]]]:
    method = census.methods()[name]
    return [(site, rotations.recognise(name, site)) for site in sites.found(method)]


@pytest.mark.parametrize("name", [*census.LEFT_METHODS, *census.NO_ROTATION])
def test_what_is_left_is_not_recognised(name: str) -> None:
    method = census.methods()[name]
    if name == "transformer_cosmos3.Cosmos3VLTextRotaryEmbedding.forward":
        assert not sites.found(method)
        return
    with pytest.raises(RopeError, match="does not rotate pairs"):
        _recognised(name)


def test_functions_that_rotate() -> None:
    seen, left = set(), set()
    for name, method in census.methods().items():
        if name in census.LEFT_METHODS:
            left |= {(s.function.__code__, o) for s in sites.found(method) for o in s.options}
            continue
        for site, known in () if name in census.NO_ROTATION else _recognised(name):
            for options, convention in known.items():
                key = site.function.__code__, options
                if key not in seen:
                    seen.add(key)
                    _compare(site, dict(options), convention, known)
    assert not seen & left
    codes = {code for code, _ in seen}
    assert len(codes) / len(codes | {code for code, _ in left}) >= 0.95


def _compare(
    site: sites.Site, options: dict[str, Any], convention: conventions.Convention, known: Any
) -> None:
    """Compare a function with what takes its place, in float32 and in bfloat16."""
    axes, table_axes = convention.laid[0]
    sizes = {"b": 2, "h": 3, "s": 17, "d": 32 * convention.parts}
    generator = torch.Generator().manual_seed(1)
    x = torch.randn([sizes[a] for a in axes.replace("d", "") + "d"], generator=generator)
    x = x.movedim(-1, axes.index("d"))  # of which one function asks that heads lie in one piece
    lengths = {**sizes, "h": 1, "s": 17 * convention.parts, "d": 16}
    angles = 100 * torch.rand([lengths[a] for a in table_axes], generator=generator)
    given = conventions.given(angles, convention)
    ours = rotations.replacement(site, known)
    for dtype in (torch.float32, torch.bfloat16):
        arrays = [x.to(dtype)] * convention.arrays
        wide = [array.double() for array in arrays]
        exact = rotations.rotated(wide, conventions.given(angles.double(), convention), convention)
        assert exact is not None
        mine, theirs = ours(*arrays, *given, **options), site.function(*arrays, *given, **options)
        for a, b, e in zip(_tuple(mine), _tuple(theirs), exact, strict=True):
            assert a.dtype == dtype
            size = e.abs().max()
            unit = 2e-5 if dtype == torch.float32 else float(size) * 2.0**-8
            near = (a.double() - b.double()).abs().max() <= unit
            nearer = (a.double() - e).abs().max() <= (b.double() - e).abs().max()
            assert near or nearer, (site.name, dtype)


def test_thirds_that_are_given_otherwise_are_left_to_the_function() -> None:
    ((site, known),) = _recognised("attention_processor.AllegroAttnProcessor2_0.__call__")
    ours = rotations.replacement(site, known)
    x = torch.randn((2, 3, 5, 24), generator=torch.Generator().manual_seed(0))
    (convention,) = known.values()
    pairs, (at, *_) = conventions.given(torch.rand((1, 15, 4)), convention)
    assert rotations.rotated([x], (pairs, (at, at, at)), convention) is not None
    for given in (
        (pairs, (at, at, at.expand(2, -1))),  # positions that are broadcast
        (pairs, at.expand(3, 1, -1)),  # and those that are one tensor
        (torch.stack([torch.stack(pair) for pair in pairs]), (at, at, at)),
    ):
        assert rotations.rotated([x], given, convention) is None
        assert torch.equal(ours(x, *given), site.function(x, *given))
    assert rotations.rotated([x[..., :23]], (pairs, (at, at, at)), convention) is None


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


# --- configurations ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_each_class_is_in_diffusers(name: str) -> None:
    import diffusers

    kind = getattr(diffusers, name)
    rotary, positions = from_config({"_class_name": name})
    text = 0
    if models.MODELS[name].place.__name__ in ("flux", "flux2", "qwen", "z_image", "lumina2"):
        text = 3
    sound = models.MODELS[name].place.__name__ == "line"
    at = positions(1 if sound else 4, 6, text=text)
    tokens = 6 if sound else 24 + text
    assert at.shape[-1] == tokens
    assert rotary.cos_sin(at, rotary.rotary_dim)[0].shape == (tokens, rotary.rotary_dim // 2)
    assert set(models.MODELS[name].defaults) <= set(inspect.signature(kind.__init__).parameters)


@pytest.mark.parametrize("name", sorted(models.UNSUPPORTED))
def test_what_has_no_rope_says_why(name: str) -> None:
    with pytest.raises(RopeConfigError, match=re.escape(models.UNSUPPORTED[name])):
        from_config({"_class_name": name})


@pytest.mark.parametrize("name", COUNTING)
def test_positions_of_a_grid_are_those_of_the_module(name: str) -> None:
    """Those modules that count patches themselves count as the positions do."""
    module, rope = small(name)
    row = EMBEDDINGS[type(module).__name__]
    ((latents,), _) = row.probe(module, rope)
    patches = module.patch_size
    if isinstance(patches, int):
        patches = (getattr(module, "patch_size_t", 1), patches, patches)[-(latents.ndim - 2) :]
    lengths = [n // size for n, size in zip(latents.shape[2:], patches, strict=True)]
    *frames, height, width = lengths
    at = from_config(census.SMALL[name].config).positions(
        height, width, **({"frames": frames[0]} if frames else {})
    )
    cos, sin = rope.cos_sin(at, rope.rotary_dim)
    theirs = row.made(rope, module, latents)
    form = "halves" if rope.layout == "half" else "neighbours"
    pairs = slice(cos.shape[-1]) if form == "halves" else slice(None, None, 2)
    for mine, other in zip((cos, sin), theirs, strict=True):
        flat = other.reshape(-1, other.shape[-1])[:, pairs]
        np.testing.assert_allclose(mine, flat, rtol=0, atol=OWN)


WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("_class_name is missing", {}),
    ("not known, or does not rotate", {"_class_name": "UNet2DModel"}),
    ("must be even", {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [3, 5]}),
    ("not iterable", {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": 3}),
    ("must be positive", {"_class_name": "Flux2Transformer2DModel", "rope_theta": -1}),
)


@pytest.mark.parametrize(("said", "config"), WRONG)
def test_errors_of_configurations(said: str, config: dict[str, Any]) -> None:
    with pytest.raises(RopeConfigError, match=said):
        from_config(config)


def test_errors_of_positions() -> None:
    wan, sound = (
        from_config({"_class_name": name}).positions
        for name in ("WanTransformer3DModel", "AceStepTransformer1DModel")
    )
    for said, call in (
        ("does not rotate its text", lambda: wan(2, 2, text=1)),
        ("height must be positive", lambda: wan(0, 2)),
        ("one axis, width", lambda: sound(2, 2)),
        ("needs xp", lambda: wan(2, 2, device="cpu")),
    ):
        with pytest.raises(RopeError, match=said):
            call()
    assert wan(2, 2, xp=torch).dtype == torch.int64


def test_a_configuration_needs_no_torch() -> None:
    program = (
        "from rope_xp.integrations.diffusers import from_config\n"
        "rope, positions = from_config({'_class_name': 'WanTransformer3DModel'})\n"
        "import sys; assert not {'torch', 'diffusers', 'jax'} & set(sys.modules)\n"
        "print(rope.rotary_dim, positions(2, 3, frames=4).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["128", "(3,", "24)"]
