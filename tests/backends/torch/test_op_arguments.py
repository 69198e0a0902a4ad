"""torch's operators refuse arguments that would read or write outside of them."""

import pytest

from rope_xp import QKNorm, RoPE, RopeError

torch = pytest.importorskip("torch")


def table(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


LOW, HIGH, POSITIONS = table(2048, 8), table(513, 8), torch.arange(3)
LOOKUP = {"positions": POSITIONS, "table": LOW, "table_2": LOW, "table_3": HIGH}


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
        {"table": table(3, 4).to("meta")},
    ],
    ids=lambda wrong: ", ".join(wrong),
)
def test_arguments_that_would_leave_memory_are_refused(wrong):
    RoPE().rotate(torch.ones(3, 2, 8))  # which registers the operators
    names = ("positions", "part", "table", "table_2", "table_3", "frequencies", "components")
    arguments = {"x": torch.ones(1, 3, 2, 8), **dict.fromkeys(names), "axes": "bshd"}
    arguments |= {"layout": "half", "offset": 0, "inverse": False}
    arguments |= {"table": table(3, 4), "table_2": table(3, 4)}
    torch.ops.rope_xp.rotate(*arguments.values())
    with pytest.raises((RopeError, NotImplementedError)):
        torch.ops.rope_xp.rotate(*(arguments | wrong).values())


def test_results_that_overlap_what_the_operator_reads_are_refused():
    memory = torch.ones(1, 4, 2, 8)
    plain = None, None, table(3, 4), table(3, 4), None, None, None, "bshd", "half", 0, False
    with pytest.raises(RopeError, match="out overlaps x"):
        torch.ops.rope_xp.rotate_out([memory[:, 1:]], [memory[:, :3]], *plain)
    assert (memory == 1).all()


def test_components_beyond_those_of_positions_are_refused():
    RoPE().rotate(torch.ones(3, 2, 8))  # which registers the operators
    lookup = torch.zeros(3, 2).long(), None, LOW, LOW, HIGH, None
    for component in (2, -1):
        components = torch.full((4,), component).int()
        with pytest.raises(RopeError, match="components must be indices below 2"):
            torch.ops.rope_xp.rotate(
                torch.ones(1, 3, 2, 8), *lookup, components, "bshd", "half", 0, False
            )


@pytest.mark.parametrize("rows", [(), (2,)])
@pytest.mark.parametrize("in_place", [False, True])
def test_weights_that_learn_are_refused_with_out(rows, in_place):
    x, weight = torch.randn(1, 3, 2, 8), torch.ones(*rows, 8, requires_grad=True)
    out = (x, x.clone()) if in_place else (torch.empty_like(x), torch.empty_like(x))
    for _ in range(3):
        with pytest.raises(RopeError, match=r"out\[0\], with norm.q_weight: autograd cannot"):
            RoPE().apply(x, out[1] if in_place else x, norm=QKNorm(weight, weight), out=out)
    with torch.no_grad():
        RoPE().apply(x, out[1] if in_place else x, norm=QKNorm(weight, weight), out=out)
