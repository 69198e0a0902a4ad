"""Write a rotation as ONNX's operator RotaryEmbedding (opset 23), with exact tables.

Needs ``pip install onnx``. To export a whole model, trace it instead: see docs/onnx.md.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rope_xp._arguments import fields
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp.rope import RoPE

__all__ = ["model", "nodes"]

OPSET = 23  # the first with RotaryEmbedding
IR_VERSION = 11  # the one that runtimes with this opset read; onnx would write its newest
_FLOATS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


def nodes(
    rope: RoPE,
    head_dim: int,
    max_positions: int,
    *,
    inputs: Sequence[str] = ("x", "position_ids"),
    output: str = "y",
    num_heads: int | None = None,
    dtype: str = "float32",
    name: str = "rope",
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes that rotate one value of a graph, and their tables as initializers.

    Parameters
    ----------
    rope : RoPE
        Its slice must start at component 0.
    head_dim, max_positions : int
        Positions run from 0 to ``max_positions - 1``. Two tables are stored, each
        (max_positions, r/2) float32.
    inputs : sequence of str, default ("x", "position_ids")
        Names of the value to rotate and of its positions, int64 (batch, tokens).
    output : str, default "y"
    num_heads : int, optional
        If given, x is (batch, tokens, num_heads * head_dim), else (batch, heads, tokens, head_dim).
    dtype : {"float32", "float16", "bfloat16"}, default "float32"
        Dtype of x. 16-bit x is cast, rotated in float32 and rounded once.
    name : str, default "rope"
        Prefix of the names of nodes, tables and values between them.

    Returns
    -------
    nodes : list of onnx.NodeProto
        RotaryEmbedding, for 16-bit x between two casts.
    initializers : list of onnx.TensorProto
        cos and sin, multiplied by the attention factor.

    Raises
    ------
    RopeError, TypeError
        If the operator cannot express the rope, or an argument is wrong.

    Examples
    --------
    >>> import rope_xp
    >>> import rope_xp.onnx
    >>> (node,), tables = rope_xp.onnx.nodes(rope_xp.RoPE(layout="half"), 64, 4096)
    >>> node.op_type, [(table.name, list(table.dims)) for table in tables]
    ('RotaryEmbedding', [('rope_cos', [4096, 32]), ('rope_sin', [4096, 32])])
    """
    # onnx takes only Python's integers, which the checks return.
    head_dim = numbers.check_positive_int("head_dim", head_dim)
    max_positions = numbers.check_positive_int("max_positions", max_positions)
    if num_heads is not None:
        num_heads = numbers.check_positive_int("num_heads", num_heads)
    numbers.check_one_of("dtype", dtype, tuple(_FLOATS))
    fields.check_rope(rope, RoPE)
    rotary_dim = _check_expressible(rope, head_dim)
    if isinstance(inputs, str) or len(inputs) != 2:
        raise RopeError(f"inputs must be two names, for x and for its positions; got {inputs!r}")
    x, positions = inputs
    cos, sin = f"{name}_cos", f"{name}_sin"
    wide_x, wide_y = (x, output) if dtype == "float32" else (f"{name}_x", f"{name}_y")
    rotation = helper.make_node(
        "RotaryEmbedding",
        [wide_x, cos, sin, positions],
        [wide_y],
        name,
        interleaved=int(rope.layout == "interleaved"),
        num_heads=num_heads,  # None writes no attribute
        rotary_embedding_dim=None if rotary_dim == head_dim else rotary_dim,
    )
    named = zip(rope.cos_sin(np.arange(max_positions), head_dim), (cos, sin), strict=True)
    tables = [numpy_helper.from_array(np.ascontiguousarray(t), label) for t, label in named]
    if dtype == "float32":
        return [rotation], tables
    widen = helper.make_node("Cast", [x], [wide_x], f"{name}_widen", to=TensorProto.FLOAT)
    rounded = helper.make_node("Cast", [wide_y], [output], f"{name}_narrow", to=_FLOATS[dtype])
    return [widen, rotation, rounded], tables


def model(
    rope: RoPE,
    head_dim: int,
    max_positions: int,
    *,
    num_heads: int | None = None,
    dtype: str = "float32",
) -> onnx.ModelProto:
    """Return a model of opset 23 that rotates one array ``x`` by ``position_ids`` into ``y``.

    Parameters
    ----------
    rope, head_dim, max_positions, num_heads, dtype
        See :func:`nodes`. Batch, tokens and, without ``num_heads``, heads may have any length.

    Examples
    --------
    >>> import onnx
    >>> import rope_xp
    >>> import rope_xp.onnx
    >>> model = rope_xp.onnx.model(rope_xp.RoPE(), 64, 4096, num_heads=8)
    >>> onnx.checker.check_model(model, full_check=True)
    """
    graph_nodes, tables = nodes(rope, head_dim, max_positions, num_heads=num_heads, dtype=dtype)
    shape: list[str | int] = ["batch", "heads", "tokens", int(head_dim)]
    if num_heads is not None:
        shape = ["batch", "tokens", int(num_heads) * int(head_dim)]
    x, y = (helper.make_tensor_value_info(name, _FLOATS[dtype], shape) for name in "xy")
    axes = ["batch", "tokens"]
    positions = helper.make_tensor_value_info("position_ids", TensorProto.INT64, axes)
    graph = helper.make_graph(graph_nodes, "rope", [x, positions], [y], tables)
    versions = {"opset_imports": [helper.make_opsetid("", OPSET)], "ir_version": IR_VERSION}
    return helper.make_model(graph, producer_name="rope_xp", **versions)


def _check_expressible(rope: RoPE, head_dim: int) -> int:
    """Check that the operator can express the rope; return how many components it rotates."""
    rotary_dim, offset = slice_of(rope, head_dim)
    if rope.layout == "interleaved_to_half":
        problem = "layout='interleaved_to_half'; use 'interleaved', with the same scores"
    elif rope.position_axes is not None:
        problem = "position_axes; trace the model with torch.onnx.export or ndonnx"
    elif offset:
        problem = (
            f"a slice that starts at component {offset}; split it off x, rotate it as a head of "
            f"{rotary_dim} components, and join them again"
        )
    else:
        return rotary_dim
    raise RopeError(f"RotaryEmbedding of ONNX cannot express {problem}")
