"""Files of docs/examples/start: they run, say what they promise, and are what the pages show."""

import functools
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "examples" / "start").glob("*.py"))
NEEDS = {
    "attention_torch": "torch",
    "decoder_jax": "jax",
    "vit_torch": "torch",
    "patch_model": "transformers",
}
SHOWN = re.compile(
    r"^\[`?([\w/.]+)`?\]\((examples/start/\w+\.py)\):\n\n```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def load(name, run_name="example"):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return runpy.run_path(str(DOCS / "examples" / "start" / f"{name}.py"), run_name=run_name)


def test_start_pages_show_each_example_file():
    """A block is a file without its docstring: to mend this, paste the file into the page."""
    pages = [page.read_text("utf-8") for page in (*DOCS.glob("start_*.md"), DOCS / "models.md")]
    shown = {path: text for page in pages for _, path, text in SHOWN.findall(page)}
    assert shown.keys() == {f"examples/start/{file.name}" for file in FILES}
    for file in FILES:
        _, _, code = file.read_text("utf-8").split('"""', 2)
        assert shown[f"examples/start/{file.name}"] == code.lstrip("\n"), file.name
    toy = (DOCS / "examples" / "toy_backend.py").read_text("utf-8")
    assert f"```python\n{toy}```" in (DOCS.parent / "backends" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", [file.stem for file in FILES if file.stem != "decoder_jax"])
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
