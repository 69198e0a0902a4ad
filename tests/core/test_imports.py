"""import rope_xp is quick and imports no framework. Each check runs in a process of its own."""

import pytest
from support.cases import slow
from support.programs import run

HEAVY = "importlib_metadata email zipfile asyncio argparse json unittest array_api_compat"
FRAMEWORKS = "torch jax cupy numba triton dask matplotlib onnx flax equinox keras torch._dynamo"


def python(code: str, *flags: str) -> list[str]:
    return run("-W", "error", *flags, "-c", code).splitlines()


@pytest.mark.parametrize(("library", "flags"), [("numpy", ("-OO",)), slow("torch", ())])
def test_import_and_calls_bring_no_library_but_that_of_their_arrays(library, flags):
    """import takes 50 ms beyond numpy at most, which asv_benchmarks/imports.py times."""
    pytest.importorskip(library)
    lines = python(
        f"import sys, {library} as xp; before = set(sys.modules); import rope_xp\n"
        "new = lambda names: [m for m in names.split() if m in set(sys.modules) - before]\n"
        f"print(new({HEAVY!r})); q = xp.ones((1, 2, 3, 4), dtype=xp.float32)\n"
        "rope_xp.explain(q, q); rope_xp.RoPE().frequencies(4)\n"
        f"print(type(rope_xp.apply(q, q, [5, 6])[0]) is type(q), new({FRAMEWORKS!r}))",
        *flags,
    )
    assert lines == ["[]", "True []"]


@pytest.mark.slow  # torch.compile takes seconds
def test_a_compiled_function_may_meet_the_first_array_of_numpy():
    pytest.importorskip("torch")
    lines = python(
        "import numpy as np, torch, rope_xp\n"
        "def f(q, p):\n"
        "    rope = rope_xp.RoPE(scaling=rope_xp.scaling.DynamicNTK(2.0, 64)).for_length(100)\n"
        "    return rope.rotate(q, p), rope.at(p, like=q).rotate(q)\n"
        "compiled = torch.compile(f, backend='aot_eager', fullgraph=True)\n"
        "q, p = torch.ones(5, 2, 8), np.arange(5)\n"
        "print(*[torch.equal(a, b) for a, b in zip(compiled(q, p), f(q, p))])",
    )
    assert lines == ["True True"]


def test_public_modules_load_on_first_use() -> None:
    modules = ("backend", "integrations", "layers", "papers", "positions", "testing")
    lines = python(
        f"import rope_xp, sys; names = {modules}\n"
        "before = [f'rope_xp.{name}' in sys.modules for name in names]\n"
        "print(any(before), {*names, 'onnx', 'apply'} <= {*dir(rope_xp)})\n"
        "print(*[getattr(rope_xp, name).__name__ for name in names])\n"
        "print(rope_xp.papers.analysis.__name__, hasattr(rope_xp, 'no_such_module'))"
    )
    names = " ".join(f"rope_xp.{name}" for name in modules)
    assert lines == ["False True", names, "rope_xp.papers.analysis False"]
