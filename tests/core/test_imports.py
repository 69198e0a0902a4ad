"""import rope_xp is quick and imports no framework. Each check runs in a process of its own."""

import pytest
from support.cases import slow
from support.programs import run

FRAMEWORKS = (
    *("torch", "jax", "cupy", "numba", "triton", "dask", "matplotlib", "onnx"),
    *("flax", "equinox", "keras"),
)


def python(code: str, *flags: str) -> list[str]:
    return run("-W", "error", *flags, "-c", code).splitlines()


@pytest.mark.parametrize("flags", [slow(()), ("-OO",)])
def test_import_and_the_first_call_bring_no_framework(flags):
    """import takes 50 ms beyond numpy at most, which asv_benchmarks/imports.py times."""
    lines = python(
        "import sys, numpy as np; before = set(sys.modules); import rope_xp\n"
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before}))\n"
        "q = np.ones((1, 2, 3, 4), np.float32)\n"
        f"found = lambda: [m for m in {FRAMEWORKS!r} if m in sys.modules]\n"
        "rope_xp.explain(q, q); rope_xp.RoPE().frequencies(4); print(found())\n"
        "rope_xp.apply(q, q, [5, 6]); print(found())",
        *flags,
    )
    heavy = {"importlib_metadata", "email", "zipfile", "asyncio", "argparse", "json", "unittest"}
    heavy |= {"array_api_compat"}  # the first array that asks for it brings it
    assert "rope_xp" in lines[0].split()
    assert not set(lines[0].split()) & heavy
    assert lines[1:] == ["[]", "[]"]


@pytest.mark.slow  # a process that imports torch
def test_arrays_of_a_library_imported_later_bring_no_other():
    pytest.importorskip("torch")
    modules = ("rope_xp_backends.gpu.triton_kernel", "torch._dynamo", "torch._inductor")
    modules += FRAMEWORKS
    lines = python(
        f"import rope_xp, sys, torch; x = torch.ones(2, 3, 4); before = set(sys.modules)\n"
        "assert type(rope_xp.RoPE().rotate(x)) is type(x)\n"
        f"print([m for m in set(sys.modules) - before if m in {modules!r}])"
    )
    assert lines == ["[]"]


@pytest.mark.slow  # torch.compile takes seconds
def test_a_compiled_function_may_meet_the_first_array_of_numpy():
    pytest.importorskip("torch")
    lines = python(
        "import numpy as np, torch, rope_xp\n"
        "def f(q, p):\n"
        "    rope = rope_xp.RoPE()\n"
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
