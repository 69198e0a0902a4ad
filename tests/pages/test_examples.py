"""Files of docs/examples: they run, say what they promise, and are what the pages show."""

import functools
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
START = sorted((DOCS / "examples" / "start").glob("*.py"))
KERNELS = {"test_triton_kernel": "triton", "test_cpp_kernel": "c++"}
NEEDS = {
    "attention_torch": "torch",
    "decoder_jax": "jax",
    "vit_torch": "torch",
    "patch_model": "transformers",
}


def load(name, run_name="example"):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return runpy.run_path(str(DOCS / "examples" / "start" / f"{name}.py"), run_name=run_name)


SHOWN = [*START, *(DOCS / "examples" / f"{name}.py" for name in ("toy_backend", *KERNELS))]


@pytest.mark.parametrize("file", SHOWN, ids=lambda file: file.stem)
def test_pages_show_each_example_file(file):
    """As a whole, or without its docstring: to mend this, paste the file into the page."""
    pages = [*DOCS.glob("*.md"), DOCS.parent / "backends" / "README.md"]
    text, source = "".join(page.read_text("utf-8") for page in pages), file.read_text("utf-8")
    codes = source, source.split('"""', 2)[-1].lstrip()
    assert any(f"```python\n{code}```" in text for code in codes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needed"), KERNELS.items())
def test_example_of_a_kernel_passes(name, needed):
    found = shutil.which(needed) if needed == "c++" else importlib.util.find_spec(needed)
    if not (found and importlib.util.find_spec("torch")):
        pytest.skip(f"needs torch and {needed}")
    # In a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"{name}.py"]
    folders = (DOCS.parent, DOCS.parent / "backends", os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    command, at = [sys.executable, "-m", "pytest", *options], DOCS / "examples"
    assert b" passed" in subprocess.check_output(command, env=environment, cwd=at)


@pytest.mark.parametrize("name", [file.stem for file in START if file.stem != "decoder_jax"])
def test_start_example_runs(name, capsys, monkeypatch):
    """Each asserts what it prints."""
    if name == "attention_torch":
        torch = pytest.importorskip("torch")
        counter = pytest.importorskip("torch._dynamo.testing").CompileCounter()
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    load(name, "__main__")
    assert capsys.readouterr().out
    if name == "attention_torch":
        assert counter.frame_count == 2  # of the prefill, and of a token


def test_start_example_with_grouped_heads_is_llama():
    example = load("attention_torch")
    pytest.importorskip("transformers")
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=8, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5}, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = llama.LlamaAttention(config, layer_idx=0)
    ours = example["Attention"](256, 8, 2)
    fused = [theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]
    ours.load_state_dict({"qkv.weight": torch.cat(fused), "out.weight": theirs.o_proj.weight})
    x, indices = torch.randn(2, 9, 256), torch.arange(9)
    with torch.no_grad():
        result = example["generate"](ours, x, example["Cache"](2, 16, 2, 32), prefill=6)
        mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
        expected, _ = theirs(x, llama.LlamaRotaryEmbedding(config)(x, indices[None]), mask)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_start_example_of_jax_trains():
    load("decoder_jax", "__main__")  # which asserts that the loss falls
