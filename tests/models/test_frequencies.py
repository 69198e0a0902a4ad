"""apply_frequencies against models that have frequencies of their own, as their code rotates.

Their angles are float32 products and sums: off by 2**-24 of the largest angle for each of either.
"""

import pytest

from rope_xp import apply_frequencies, positions

torch = pytest.importorskip("torch")


def sample(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def assert_as_close_as_theirs(ours, theirs, angles, sums=1):
    bound = 2 * sums * angles.abs().max().item() * 2.0**-24 + 1e-6
    torch.testing.assert_close(ours, theirs, rtol=0, atol=theirs.abs().max().item() * bound)


# It turns autocast off, by a dtype that autocast on a CPU has not.
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_apply_frequencies_rotates_as_mochi():
    """Learned for each head, of frame, row and column; the cells lie between whole numbers."""
    mochi = pytest.importorskip("diffusers.models.transformers.transformer_mochi")
    rope = mochi.MochiRoPE()
    frequencies = 0.1 * sample(3, 4, 8)
    q, k = sample(2, 2 * 6 * 5, 4, 16), sample(2, 2 * 6 * 5, 4, 16).flip(0)
    cos, sin = rope(frequencies, 2, 6, 5, dtype=torch.float32)
    cells = rope._get_positions(2, 6, 5, dtype=torch.float32).T
    assert not torch.equal(cells, cells.round())
    rotated = apply_frequencies(q, k, cells, frequencies, layout="interleaved")
    angles = torch.einsum("dn,dhf->nhf", cells.abs(), frequencies.abs())
    for x, ours in zip((q, k), rotated, strict=True):
        even, odd = x[..., ::2], x[..., 1::2]
        theirs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
        assert_as_close_as_theirs(ours, theirs, angles, sums=3)


def test_apply_frequencies_rotates_as_rope_mixed():
    """Heo et al. 2024, as in timm: two learned components for each head, columns first."""
    rows, columns = (torch.from_numpy(axis) for axis in positions.grid(6, 5))
    learned = sample(2, 4, 8).requires_grad_()
    q = sample(1, 4, 30, 16)
    angles = columns[:, None] * learned[0, :, None] + rows[:, None] * learned[1, :, None]
    pairs = torch.view_as_complex(q.unflatten(-1, (8, 2)))
    expected = torch.view_as_real(pairs * torch.polar(torch.ones(()), angles)).flatten(-2)
    options = {"layout": "interleaved", "axes": "bhsd"}
    rotated, _ = apply_frequencies(q, q, [columns, rows], learned, **options)
    assert_as_close_as_theirs(rotated, expected, angles, sums=2)
    gradients = [torch.autograd.grad(y.sin().sum(), learned)[0] for y in (rotated, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("modality", "shape", "ranges"), [("video", (2, 3, 4), (20, 2048, 2048)), ("audio", (24,), 20)]
)
def test_apply_frequencies_rotates_as_ltx_2(modality, shape, ranges):
    """Angles that run on from head to head: each pair reads one component, or none."""
    ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx2")
    heads, dim = 4, 128
    options = {"rope_type": "split", "num_attention_heads": heads, "modality": modality}
    rope = ltx.LTX2AudioVideoRotaryPosEmbed(dim, **options)
    coords = rope.prepare_coords(1, *shape, device="cpu")
    tables = rope(coords)
    q = sample(1, heads, tables[0].shape[2], dim // heads)
    theirs = ltx.apply_split_rotary_emb(q, tables)
    # The same numbers as arguments: where in its range each patch lies, from -1 to 1.
    cells = coords.mean(-1)[0] / torch.tensor(ranges).view(-1, 1) * 2 - 1
    each = dim // (2 * len(cells))
    powers = rope.theta ** torch.linspace(0.0, 1.0, each, dtype=torch.float64)
    frequencies = torch.zeros(len(cells), dim // 2)
    for c in range(len(cells)):
        frequencies[c, dim // 2 - each * len(cells) + c :: len(cells)] = powers * torch.pi / 2
    arguments = q, q, cells[:, None], frequencies.unflatten(1, (heads, -1))
    ours, _ = apply_frequencies(*arguments, layout="half", axes="bhsd")
    assert_as_close_as_theirs(ours, theirs, cells * rope.theta * torch.pi / 2)
