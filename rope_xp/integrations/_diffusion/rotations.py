"""The functions by which diffusers rotates q and k, and their replacements: a row for each."""

import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch

from rope_xp._core.errors import RopeError, rewording
from rope_xp._core.typing import Layout
from rope_xp.angles import Angles
from rope_xp.integrations import _formats, _norms, _rotary
from rope_xp.integrations._drop_in import load_rope
from rope_xp.integrations._formats import Format
from rope_xp.integrations._methods import Function


class RotationRow(NamedTuple):
    """A way to call a function that rotates."""

    form: Format = "neighbours"
    # How cos and sin are passed: in a tuple, as two arguments, joined along the last axis, or in a
    # tuple for each third of a head, with positions that select its rows. Of complex numbers and
    # matrices there is one array.
    packing: Literal["tuple", "two", "joined", "thirds"] = "tuple"
    axes: str = "bshd"  # as in rope_xp.apply; with "n" each head has its own tables
    table_axes: str = ""  # empty for the last of ``axes``, as arrays are broadcast
    arrays: int = 1  # how many arrays a call rotates
    partial: bool = False  # a head may be longer than the tables
    options: Mapping[str, Any] = {}  # of calls that rotate so

    @property
    def layout(self) -> Layout:
        return "half" if self.form in ("halves", "pairs") else "interleaved"


_ALLEGRO = RotationRow("halves", "thirds", axes="bhsd", table_axes="bsd")
_HELIOS = RotationRow(packing="joined", table_axes="bsd")
_MINIMAX = RotationRow("halves", "two", table_axes="sd", partial=True)
_MUSIC = RotationRow("halves", table_axes="sd", partial=True)
_SANA = RotationRow("complex", axes="bhds", table_axes="bhsd")
_LTX = RotationRow(axes="bsd")
_LTX_SPLIT = RotationRow("pairs", axes="bsnd", table_axes="bnsd")
_QWEN = RotationRow("complex", table_axes="sd", options={"use_real": False})
_WAN = RotationRow(packing="two")

ROTATIONS: dict[str, tuple[RotationRow, ...]] = {
    "embeddings.apply_rotary_emb": (
        RotationRow(axes="bhsd", table_axes="sd"),
        RotationRow(table_axes="sd", options={"sequence_dim": 1}),
        RotationRow("halves", axes="bhsd", table_axes="sd", options={"use_real_unbind_dim": -2}),
        RotationRow(
            "halves", table_axes="sd", options={"sequence_dim": 1, "use_real_unbind_dim": -2}
        ),
        RotationRow("complex", table_axes="bsd", options={"use_real": False}),
    ),
    "embeddings.apply_rotary_emb_allegro": (_ALLEGRO,),
    "transformer_helios.apply_rotary_emb_transposed": (_HELIOS,),
    "transformer_hidream_image.apply_rope": (RotationRow("matrices", arrays=2),),
    "transformer_joyimage._apply_rotary_emb": (RotationRow(table_axes="sd", arrays=2),),
    "transformer_kandinsky6.apply_rotary": (RotationRow("matrices"),),
    "transformer_kandinsky6_sr.apply_rotary": (RotationRow("matrices"),),
    "transformer_longcat_audio_dit._apply_rotary_emb": (RotationRow("halves", table_axes="sd"),),
    "transformer_ltx.apply_rotary_emb": (_LTX,),
    "transformer_ltx2.apply_interleaved_rotary_emb": (_LTX,),
    "transformer_ltx2.apply_split_rotary_emb": (_LTX_SPLIT,),
    "transformer_minimax_h3._apply_rotary_emb": (_MINIMAX,),
    "transformer_minimax_music3._apply_partial_rotary_emb": (_MUSIC,),
    "transformer_nucleusmoe_image._apply_rotary_emb_nucleus": (_QWEN,),
    "transformer_prx.apply_rope": (RotationRow("matrices", axes="bhsd"),),
    "transformer_qwenimage.apply_rotary_emb_qwen": (_QWEN,),
    "transformer_sana_wm._apply_rotary_emb": (_SANA,),
    "transformer_sana_wm_refiner.apply_interleaved_rotary_emb": (_LTX,),
    "transformer_sana_wm_refiner.apply_split_rotary_emb": (_LTX_SPLIT,),
    "Kandinsky5AttnProcessor.apply_rotary": (RotationRow("matrices"),),
    "SanaLinearAttnProcessor3_0.apply_rotary_emb": (_WAN,),
    "SkyReelsV2AttnProcessor.apply_rotary_emb": (_WAN,),
    "WanAttnProcessor.apply_rotary_emb": (_WAN,),
    "ZSingleStreamAttnProcessor.apply_rotary_emb": (RotationRow("complex", table_axes="bsd"),),
}
"""The ways to call a function, by its module and name; by the class whose method defines it."""

_DEFAULTS = {"use_real": True, "use_real_unbind_dim": -1, "sequence_dim": 2}


def find_key(name: str, function: Function) -> str:
    """Return the key of a function in ``ROTATIONS``, by the name that its caller has for it."""
    owner, _, local = getattr(function, "__qualname__", "").partition(".")
    if local:
        return f"{owner}.{name}"
    return f"{getattr(function, '__module__', '').rpartition('.')[2]}.{name}"


def build_replacement(name: str, original: Function, module: ModuleType | None) -> Function:
    """Return a function that rotates as one of diffusers does, by rope_xp.

    A function that replaces the original in its module later on is called instead.
    """
    rows = ROTATIONS[find_key(name, original)]

    def rotate(*arguments: Any, **options: Any) -> Any:
        if module is not None and getattr(module, name) is not original:
            return getattr(module, name)(*_norms.normalize(arguments), **options)
        return rotate_like(rows, original, *arguments, **options)

    rotate.replaces = original, rows  # type: ignore[attr-defined]  # see replace_rotations
    return rotate


def rotate_like(
    rotations: Sequence[RotationRow], function: Function, *arguments: Any, **options: Any
) -> Any:
    """Rotate as a function of diffusers does; call it if no row has these arguments."""
    changed = {k: v for k, v in options.items() if k not in _DEFAULTS or v != _DEFAULTS[k]}
    for rotation in rotations:
        n, tables = rotation.arrays, 2 if rotation.packing in ("two", "thirds") else 1
        if rotation.options == changed and len(arguments) == n + tables:
            return _formats.unwrap(rotate_arrays(arguments[:n], arguments[n:], rotation))
    return function(*_norms.normalize(arguments), **options)


def rotate_arrays(
    arrays: Sequence[torch.Tensor], tables: Sequence[Any], rotation: RotationRow
) -> tuple[torch.Tensor, ...]:
    if rotation.packing == "thirds":
        return tuple(_rotate_thirds(x, *tables) for x in arrays)
    if rotation.packing == "joined":
        tables = tables[0].chunk(2, dim=-1)
    elif rotation.packing == "tuple" and isinstance(tables[0], tuple | list):
        (tables,) = tables
    cos, sin = _formats.read(tables, rotation.form)
    axes, table_axes = rotation.axes, rotation.table_axes or rotation.axes[-cos.ndim :]
    if "h" in table_axes:
        cos, sin = (table.squeeze(table_axes.index("h")) for table in (cos, sin))
    # LTX-2 has all heads in one axis.
    heads_merged = "n" in axes and arrays[0].ndim == 3
    if heads_merged:
        arrays = [x.reshape(*x.shape[:-1], cos.shape[1], -1) for x in arrays]
    axis = axes.index("d")
    last = axes.replace("d", "") + "d"
    rope = load_rope(torch.compiler.is_compiling(), rotation.layout, 2 * cos.shape[-1])
    rotated = []
    for array in arrays:
        (x,), norm = _norms.split_norm([array])
        cos, sin = cos.to(x.device), sin.to(x.device)  # some models compute them on the CPU
        if x.shape[axis] != 2 * cos.shape[-1] and not rotation.partial:
            raise RopeError(f"tables of {cos.shape[-1]} pairs do not fit head_dim {x.shape[axis]}")
        y = Angles(cos, sin, rope).rotate(x.movedim(axis, -1), axes=last, norm=norm)
        rotated.append(y.flatten(-2) if heads_merged else y.movedim(-1, axis))
    return tuple(rotated)


def _rotate_thirds(x: torch.Tensor, pairs: Any, positions: Any) -> torch.Tensor:
    """Rotate each third of a head by rows of its own tables, which positions select."""
    rotation = RotationRow("halves", "two", axes="bhsd", table_axes="bsd")
    thirds: list[torch.Tensor] = []
    for third, tables, rows in zip(x.chunk(3, dim=-1), pairs, positions, strict=True):
        selected = [torch.nn.functional.embedding(rows, table) for table in tables]
        thirds += rotate_arrays((third,), selected, rotation)
    return torch.cat(thirds, dim=-1)


def check_rotations(where: str, name: str, function: Function) -> None:
    """Check that a function rotates random arrays as the rows do that replace it."""
    for rotation in ROTATIONS[name]:
        arrays, tables = make_example(rotation)
        options = ", ".join(f"{key}={value!r}" for key, value in rotation.options.items())
        call = f"cannot patch {where}: {name}({options})"
        with (
            rewording(_rotary.FAILURES, f"{call} takes other arguments now: "),
            warnings.catch_warnings(action="ignore"),  # of autocast, on a machine without GPU
        ):
            theirs = function(*arrays, *tables, **rotation.options)
        ours = _formats.unwrap(rotate_arrays(arrays, tables, rotation))
        if _formats.scaled_error(ours, theirs) > 1:
            layout = f"cos and sin of one angle in the layout {rotation.layout!r}"
            raise RopeError(f"{call} does not rotate pairs by {layout}")


def make_example(rotation: RotationRow) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...]]:
    """Return random arrays and tables as a function takes them."""
    pairs, parts = 4, 3 if rotation.packing == "thirds" else 1
    sizes = {"b": 2, "h": 3, "n": 3, "s": 5, "d": parts * 2 * pairs + 4 * rotation.partial}
    generator = torch.Generator().manual_seed(0)
    # Heads are contiguous whatever the axes: some functions view them as complex numbers.
    shape = [sizes[axis] for axis in rotation.axes.replace("d", "") + "d"]
    x = torch.randn(shape, generator=generator).movedim(-1, rotation.axes.index("d"))
    sizes |= {"h": 1, "d": pairs}
    shape = [sizes[axis] for axis in rotation.table_axes or rotation.axes]
    angles = 6 * torch.rand(shape, generator=generator)
    arrays = (x.flatten(-2) if "n" in rotation.axes else x,) * rotation.arrays
    tables = _formats.write(angles.cos(), angles.sin(), rotation.form)
    if rotation.packing == "joined":
        return arrays, (torch.cat(tables, dim=-1),)
    if rotation.packing == "thirds":
        flat = [table.flatten(0, 1) for table in tables]
        rows = torch.arange(len(flat[0])).view(tables[0].shape[:2])
        thirds = tuple(tuple(table.roll(i, 0) for table in flat) for i in range(3))
        return arrays, (thirds, (rows,) * 3)
    return arrays, tables if rotation.packing == "two" else (_formats.unwrap(tables),)
