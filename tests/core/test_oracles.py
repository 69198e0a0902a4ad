"""The node tests of ONNX give the same numbers; tests/models compares with transformers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.targets import Target

import rope_xp


def onnx_cases() -> list[object]:
    """Return the node tests of RotaryEmbedding-23 that ONNX ships."""
    node = pytest.importorskip("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it makes the cases of every operator, some of which warn
        cases = node.collect_testcases("RotaryEmbedding")
    return [case for case in cases if not case.name.endswith("_expanded")]


CASES = onnx_cases()


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_node_tests(backend: Target, case: Any) -> None:
    assert len(CASES) == 8
    attributes = {a.name: a.i for a in case.model.graph.node[0].attribute}
    (x, cos, sin, *ids), (expected,) = case.data_sets[0]
    if ids:
        cos, sin = cos[ids[0]], sin[ids[0]]
    heads = attributes.get("num_heads")
    layout = "interleaved" if attributes.get("interleaved") else "half"
    shape, axes = x.shape, "bhsd"
    if heads:
        x, axes = x.reshape(*x.shape[:2], heads, -1), "bshd"
    rotated = backend.run(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout, axes=axes),
        *map(backend.make, (x, cos, sin)),
    )
    bound = 3e-7 if backend.ulps else 0  # the same operations in the same order
    np.testing.assert_allclose(backend.back(rotated).reshape(shape), expected, rtol=0, atol=bound)
