"""torch's operators refuse arguments that would read or write outside of them."""

import pytest

from rope_xp import QKNorm, RoPE, RopeError

torch = pytest.importorskip("torch")


def table(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


LOW, POSITIONS = table(2048, 8), torch.arange(3)
LOOKUP = {"positions": POSITIONS, "table": LOW, "table_2": LOW, "table_3": table(513, 8)}
AXES = {"positions": torch.zeros(3, 2).long()}  # of two components
NAMES = ("positions", "part", "table", "table_2", "table_3", "frequencies", "components")
NAMES = ("x", "k", "q_weight", "k_weight", *NAMES)
PLAIN = {**dict.fromkeys(NAMES), "axes": "bshd", "layout": "half", "offset": 0, "inverse": False}
PLAIN |= {"eps": None, "weight_offset": 0.0, "over_slice": False}
PLAIN |= {"x": torch.ones(1, 3, 2, 8), "table": table(3, 4), "table_2": table(3, 4)}


@pytest.fixture(autouse=True)
def _operators():
    RoPE().rotate(torch.ones(3, 2, 8))  # which registers them


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 1 << 40},
        {"offset": -4},
        {"layout": "halves"},
        {"axes": "bshdx"},
        {"x": torch.ones(3, 2, 8)},
        {"x": torch.ones(1, 3, 2, 8, dtype=torch.int64)},
        {"table": table(3, 64), "table_2": table(3, 64)},
        {"table": table(99, 4)},
        {"table_2": table(3, 4, dtype=torch.int64)},
        {**LOOKUP, "table_2": table(1, 8)},
        {**LOOKUP, "table_3": table(2, 8)},
        {**LOOKUP, "table": LOW.double()},
        {**LOOKUP, "table": table(8, 2048).T},
        {**LOOKUP, "positions": torch.arange(7)},
        {**LOOKUP, "positions": torch.ones(3)},
        {**LOOKUP, "part": torch.ones(3)},
        {**LOOKUP, "positions": None, "part": torch.ones(3), "frequencies": table(4)},
        {**LOOKUP, "part": table(1, 3), "frequencies": table(4)},
        {**LOOKUP, **AXES, "components": torch.zeros(3).int()},
        {"k": torch.ones(1, 7, 2, 8)},
        {"q_weight": table(8)},
        {"eps": 1e-6, "q_weight": table(7)},
        {"eps": 1e-6, "q_weight": table(8), "k": table(1, 3, 2, 8)},
        {"eps": 1e-6, "q_weight": table(8), "k_weight": table(4), "k": table(1, 3, 2, 8)},
        {"table": table(3, 4).to("meta")},
    ],
    ids=lambda wrong: ", ".join(wrong),
)
def test_rotate_operator_refuses_arguments_that_would_leave_memory(wrong):
    for right in (PLAIN, PLAIN | LOOKUP):
        torch.ops.rope_xp.rotate(*right.values())
    with pytest.raises((RopeError, NotImplementedError)):
        torch.ops.rope_xp.rotate(*(PLAIN | wrong).values())


@pytest.mark.parametrize("component", [2, -1])
def test_rotate_operator_refuses_components_beyond_those_of_positions(component):
    wrong = PLAIN | LOOKUP | AXES | {"components": torch.full((4,), component).int()}
    with pytest.raises(RopeError, match="components must be indices below 2"):
        torch.ops.rope_xp.rotate(*wrong.values())


@pytest.mark.parametrize("rows", [(), (2,)])
@pytest.mark.parametrize("in_place", [False, True])
def test_weights_that_learn_are_refused_with_out(rows, in_place):
    q, k, weight = table(1, 3, 2, 8), table(1, 3, 2, 8), table(*rows, 8).requires_grad_()
    out = (q, k) if in_place else (torch.empty_like(q), torch.empty_like(k))
    norm = QKNorm(weight, weight)
    with pytest.raises(RopeError, match=r"out\[0\], with norm.q_weight: autograd cannot"):
        RoPE().apply(q, k, norm=norm, out=out)
    with torch.no_grad():
        RoPE().apply(q, k, norm=norm, out=out)
