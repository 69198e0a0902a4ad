"""rope_xp's rotation as a layer of the package kernels, in models of transformers.

transformers 5.23 decorates its functions by kernels 0.18 and none before. So that other versions
can be tested too, the same decorators are applied here.
"""

import importlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
kernels = pytest.importorskip("kernels", reason="kernels is not installed")

from support.exhaustive import exhaustive  # noqa: E402  # needs torch
from support.patched import LOGITS, TOKENS  # noqa: E402  # needs torch
from support.small_models import make  # noqa: E402  # needs transformers

from rope_xp.integrations import _replacements  # noqa: E402  # needs torch
from rope_xp.integrations import kernels as layers  # noqa: E402  # needs kernels

MAPPING = {"rotary_pos_emb": {"cpu": layers.repository()}}


def small(monkeypatch, name):
    file = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    plain = getattr(file.apply_rotary_pos_emb, "__wrapped__", file.apply_rotary_pos_emb)
    function = kernels.use_kernel_forward_from_hub("rotary_pos_emb")(plain)
    (attention,) = (kind for key, kind in vars(file).items() if key.endswith("Attention"))
    monkeypatch.setattr(file, "apply_rotary_pos_emb", function)
    monkeypatch.setattr(attention, "__init__", attention.__init__)  # which is put back
    kernels.use_kernelized_func(function)(attention)
    return make(name)


@pytest.fixture
def rotations(monkeypatch):
    records = []

    def note(module, name):
        run = getattr(module, name)

        def noted(rotation, *operands):
            records.append(f"{rotation.form}, {rotation.layout}")
            return run(rotation, *operands)

        monkeypatch.setattr(module, name, noted)

    note(_replacements, "_rotate")
    monkeypatch.setattr(layers, "_REPLACEMENTS", {})
    return records


def kernelized(model, mode):
    with kernels.use_kernel_mapping(MAPPING, inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, device="cpu")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("llama", "halves, half"),
        exhaustive("qwen3", "halves, half"),
        exhaustive("gpt_oss", "pairs, half"),
    ],
)
@pytest.mark.parametrize("mode", ["INFERENCE", "TRAINING"])
def test_kernelized_model_rotates_by_rope_xp(name, form, mode, rotations, monkeypatch):
    model = small(monkeypatch, name)
    expected = model(TOKENS).logits
    assert not rotations
    kernelized(model, getattr(kernels.Mode, mode))
    model(TOKENS)  # now it is known what the function does
    rotations.clear()
    logits = model(TOKENS).logits
    assert rotations == [form] * 2  # q and k of a layer at once, of two layers
    torch.testing.assert_close(logits, expected, rtol=0, atol=LOGITS)
    logits.sum().backward()
    assert float(model.get_input_embeddings().weight.grad.abs().max()) > 0


def test_kernelized_function_that_turns_the_other_way_is_left(rotations, monkeypatch):
    """nanochat's goes by the same name: what rotates Llama would turn it the wrong way."""
    model = small(monkeypatch, "nanochat")
    expected = model(TOKENS).logits
    kernelized(model, kernels.Mode.INFERENCE)
    assert torch.equal(model(TOKENS).logits, expected)
    (known,) = layers._REPLACEMENTS.values()
    assert not isinstance(known, type(lambda: None))  # it is nanochat's own


@pytest.mark.exhaustive
def test_kernelized_model_compiles(rotations, monkeypatch):
    torch._dynamo.reset()
    model = small(monkeypatch, "llama")
    with torch.no_grad():
        expected = model(TOKENS).logits
        kernelized(model, kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE)
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(TOKENS).logits, expected, rtol=0, atol=LOGITS)
        assert not rotations  # as nobody knew yet what the function does
        model(TOKENS)
        rotations.clear()
        torch.testing.assert_close(compiled(TOKENS).logits, expected, rtol=0, atol=LOGITS)
    assert set(rotations) == {"halves, half"}
