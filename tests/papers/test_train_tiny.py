"""docs/examples/train_tiny.py: what it trains on, that it learns, and its twin in jax."""

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiny_model  # noqa: E402  # imports torch
import tiny_shared  # noqa: E402  # they need torch
import train_tiny  # noqa: E402  # they need torch
from tiny_shared import ALPHABET, COMBINATIONS, Config  # noqa: E402  # they need torch

SMALL = {"layers": 2, "width": 32, "heads": 2, "context": 32, "clip": 4}
STEPS = 40
every_combination = pytest.mark.parametrize(("attention", "encoding"), COMBINATIONS)


@pytest.fixture(scope="module")
def tensors():
    """A part of the text, which takes seconds to read as a whole."""
    parts = (tiny_shared.TRAIN[:8], tiny_shared.HELD_OUT[:4])
    docs = ([doc for name in names for doc in tiny_shared.docstrings(name)] for names in parts)
    train, held_out = (tiny_shared.tokens("\n\n".join(each)) for each in docs)
    return torch.from_numpy(train), torch.from_numpy(held_out[:1025])


def some_tokens(length=40, batch=2):
    return torch.randint(len(ALPHABET), (batch, length), generator=torch.Generator().manual_seed(1))


@every_combination
def test_no_token_sees_a_later_one(attention, encoding):
    config = Config(attention, encoding, **SMALL)
    weights = tiny_model.initial(config, 0)
    tokens = some_tokens()
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % len(ALPHABET)
    before, after = (tiny_model.logits(config, weights, x) for x in (tokens, changed))
    # Sums of other lengths may round in another order.
    torch.testing.assert_close(before[:, :20], after[:, :20], rtol=0, atol=1e-6)
    assert ((before - after)[:, 20:].abs().amax(-1) > 1e-4).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("attention", "encoding"), COMBINATIONS[::3])
def test_training_learns_and_jax_gives_its_logits(attention, encoding, tensors):
    jax = pytest.importorskip("jax")
    import train_tiny_jax

    config = Config(attention, encoding, **SMALL)
    run, weights = train_tiny.train(config, 0, tensors, STEPS)
    assert (run.steps[0], run.steps[-1]) == (0, STEPS)
    assert len(run.losses) == len(run.steps) == train_tiny.POINTS + 1
    assert run.losses[0] > math.log(len(ALPHABET))
    assert max(run.losses[-1], run.loss, run.loss_twice) < math.log(len(ALPHABET)) - 1

    tokens = some_tokens(2 * config.context)
    # Logits of up to 10, through some ten sums of 32 to 128 products each: in float32 the roundings
    # of either framework lie within 2e-6 of a run in float64. In float64, 2**-53 for 2**-24 is
    # 2e-14, and angles up to 64 add 64 * 2**-52.
    for dtype, atol in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        tensor_weights = {name: w.to(dtype) for name, w in weights.items()}
        logits = tiny_model.logits(config, tensor_weights, tokens).numpy()
        assert np.ptp(logits) > 1  # logits that differ
        with jax.enable_x64(dtype == torch.float64):
            arrays = {name: jax.numpy.asarray(w.numpy()) for name, w in tensor_weights.items()}
            twin = train_tiny_jax.logits(config, arrays, jax.numpy.asarray(tokens.numpy()))
            np.testing.assert_allclose(np.asarray(twin), logits, rtol=0, atol=atol, strict=True)


@pytest.mark.exhaustive
def test_training_commands_write_and_read_results(tmp_path, capsys, monkeypatch, tensors):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jax")
    import train_tiny_jax

    monkeypatch.setattr(train_tiny, "text", lambda: tuple(x.numpy() for x in tensors))
    files = {"--out": tmp_path / "c.png", "--json": tmp_path / "r", "--save": tmp_path / "w.npz"}
    options = ["--steps", "2", "--seeds", "0", "5", "--attention", "linear", "--encodings", "rope"]
    train_tiny.main([*options, *(str(x) for option in files.items() for x in option)])
    assert files["--out"].read_bytes().startswith(b"\x89PNG")
    results = json.loads(files["--json"].read_text("utf-8"))
    assert [run["seed"] for run in results["runs"]] == [0, 5]
    capsys.readouterr()
    train_tiny_jax.main(files["--save"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["linear", "rope", "0"], ["linear", "rope", "5"]]
    assert all(0 < float(row[-1]) < 1e-5 for row in rows)
