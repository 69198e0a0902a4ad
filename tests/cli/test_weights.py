"""python -m rope_xp check --weights: what it finds, and what it does not read or run."""

import json
import socket

import pytest

from rope_xp import RopeError
from rope_xp import __main__ as cli
from rope_xp._cli import weights

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402  # comes with transformers
from support.small_models import make  # noqa: E402  # needs both


def run_check(capsys, folder, *options):
    status = cli.main(["check", str(folder), "--weights", *options])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def save(folder, **keys):
    make("llama").save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))
    return folder


def test_check_weights_reports_the_findings_of_the_loaded_model(tmp_path, capsys):
    status, out, _ = run_check(capsys, save(tmp_path))
    assert status == 0
    assert "frequency buffers, cos and sin up to position 131071" in " ".join(out.split())
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    make("llama", rope_parameters=dynamic).save_pretrained(tmp_path)
    status, out, _ = run_check(capsys, tmp_path, "--json")
    assert status == 0
    kinds = [finding["kind"] for finding in json.loads(out)["findings"]]
    assert "two regimes" in kinds


@pytest.mark.parametrize("name", ["shard.safetensors", "shard.bin", "../shard.safetensors"])
def test_check_weights_reads_safetensors_in_the_folder_alone(name, tmp_path, capsys):
    folder = save(tmp_path / "model")
    file, shard = folder / "model.safetensors", folder / name
    tensors = load_file(file)
    torch.save(tensors, folder / "pytorch_model.bin")
    if shard.suffix == ".bin":
        torch.save(tensors, shard)
        file.rename(folder / "decoy.safetensors")
    else:
        file.rename(shard)
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if name == "shard.safetensors":
        assert run_check(capsys, folder)[0] == 0
        shard.unlink()
    status, _, error = run_check(capsys, folder)
    message = f"has no *.safetensors file {name!r}; --weights reads no other format"
    assert (status, message in error) == (2, True)


def test_check_weights_runs_no_code_or_kernel_that_a_configuration_names(tmp_path, capsys):
    folder = save(
        tmp_path,
        attn_implementation="somebody/kernels@main:attention",
        _attn_implementation="flash_attention_2",
        auto_map={"AutoConfig": "somebody/model--code.Config", "AutoModel": "code.Model"},
    )
    assert weights.load_model(folder).config._attn_implementation == "eager"
    assert run_check(capsys, folder)[0] == 0
    save(tmp_path, model_type="somebody")
    status, _, error = run_check(capsys, folder, "--layout", "half")
    assert (status, "--weights runs no code of a model" in error) == (2, True)


@pytest.mark.parametrize("event", ["socket.connect", "open"])
def test_check_weights_refuses_a_model_that_uses_network_or_pickles(event, tmp_path, monkeypatch):
    save(tmp_path)
    (tmp_path / "model.bin").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def ask(*_):
            if event == "open":
                (tmp_path / "model.bin").read_bytes()
            else:
                with socket.socket() as client:
                    client.connect(server.getsockname())

        monkeypatch.setattr(weights, "_build_model", ask)
        with pytest.raises(RopeError, match=f"uses no network and no pickle; rejected {event}"):
            weights.load_model(tmp_path)
        ask()  # afterwards, all is as it was


def test_check_weights_escapes_values_that_transformers_rejects(tmp_path, capsys):
    status, out, error = run_check(capsys, save(tmp_path, vocab_size="\x1b[2J"))
    assert (status, "\x1b" in out + error) == (2, False)
    assert f"check: {tmp_path}: transformers cannot load it: " in error
