"""docs/examples/train_tiny.py: what it trains on, that it learns, and its twin in jax."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiny_model  # noqa: E402  # imports torch
import tiny_results  # noqa: E402  # they need torch
import tiny_shared  # noqa: E402  # they need torch
import train_tiny  # noqa: E402  # they need torch
from support.exhaustive import exhaustive  # noqa: E402  # they need torch
from tiny_shared import ALPHABET, COMBINATIONS, Config  # noqa: E402  # they need torch

SMALL = {"layers": 2, "width": 32, "heads": 2, "context": 32, "clip": 4}
STEPS = 40
# Logits of up to 10 in float32, through some ten sums of 32 to 128 products each: the roundings of
# either framework lie within 2e-6 of a run in float64.
TWINS = 1e-5

every_combination = pytest.mark.parametrize(("attention", "encoding"), COMBINATIONS)
# To read the text takes seconds, and to train models as well.
trained_combinations = pytest.mark.parametrize(
    ("attention", "encoding"), [exhaustive(*c) for c in COMBINATIONS]
)


@pytest.fixture(scope="module")
def whole() -> tuple[np.ndarray, np.ndarray]:
    return tiny_shared.text()


@pytest.fixture(scope="module")
def texts(whole) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(whole[0]), torch.from_numpy(whole[1][:1025])


@pytest.fixture(scope="module")
def trained(texts: tuple[torch.Tensor, torch.Tensor]) -> Callable[[str, str], tuple]:
    @functools.cache
    def train(attention: str, encoding: str) -> tuple:
        return train_tiny.train(Config(attention, encoding, **SMALL), 0, texts, STEPS)

    return train


def some_tokens(length: int = 40, batch: int = 2) -> torch.Tensor:
    return torch.randint(len(ALPHABET), (batch, length), generator=torch.Generator().manual_seed(1))


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_text_is_large_and_of_the_alphabet(whole) -> None:
    train, held_out = whole
    assert len(train) > 500_000
    assert len(held_out) > 50_000
    for tokens in whole:
        assert tokens.min() == 0  # the new line, first in the alphabet
        assert tokens.max() < len(ALPHABET)


def test_docstrings_are_those_of_the_module_and_in_order() -> None:
    import heapq

    found = list(tiny_shared.docstrings("heapq"))
    assert found == list(tiny_shared.docstrings("heapq"))
    assert found[0] == inspect.cleandoc(heapq.__doc__)
    assert inspect.getdoc(heapq.merge) in found
    assert len(list(tiny_shared.docstrings("email"))) > 100  # a package, with all its modules


def test_characters_outside_the_alphabet_are_left_out() -> None:
    assert tiny_shared.tokens("a\té\nb").tolist() == [ALPHABET.index(c) for c in "a\nb"]


@pytest.mark.exhaustive
def test_nothing_held_out_is_trained_on(whole) -> None:
    assert not set(tiny_shared.TRAIN) & set(tiny_shared.HELD_OUT)
    train, held_out = ("".join(ALPHABET[i] for i in tokens) for tokens in whole)
    paragraphs = [text for text in held_out.split("\n\n") if len(text) > 60]
    shared = [text for text in paragraphs if text in train]
    assert len(paragraphs) > 200
    assert len(shared) < 0.02 * len(paragraphs), shared


def test_windows_of_both_lengths_hold_the_same_characters() -> None:
    tokens = torch.arange(12 * 16 + 1)
    for length in (8, 16):
        windows = train_tiny.cut(tokens, length)
        assert windows.shape == (len(tokens) // length, length + 1)
        assert torch.equal(windows[:, 1:].flatten(), tokens[1:])
        assert torch.equal(windows[:, :-1].flatten(), tokens[:-1])


def test_counts_are_what_a_model_can_do_without_positions() -> None:
    tokens = tiny_shared.tokens("ab" * 500)
    alone, after_one = (tiny_shared.loss_of_counts(tokens, tokens, n) for n in (0, 1))
    # 0.1 for each of 94 other characters beside 500 or 1000 of these.
    assert alone == pytest.approx(math.log(2), abs=0.01)
    assert after_one == pytest.approx(0.0, abs=0.02)


# --- the models ----------------------------------------------------------------------------------


@every_combination
def test_no_token_sees_a_later_one(attention: str, encoding: str) -> None:
    config = Config(attention, encoding, **SMALL)
    weights = tiny_model.initial(config, 0)
    tokens = some_tokens()
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % len(ALPHABET)
    before, after = (tiny_model.logits(config, weights, x) for x in (tokens, changed))
    # Sums of other lengths may round in another order.
    torch.testing.assert_close(before[:, :20], after[:, :20], rtol=0, atol=1e-6)
    assert ((before - after)[:, 20:].abs().amax(-1) > 1e-4).all()


@every_combination
def test_the_order_of_earlier_tokens_counts_where_there_are_positions(
    attention: str, encoding: str
) -> None:
    # One layer: with more, the causal mask alone tells the order.
    config = Config(attention, encoding, **SMALL | {"layers": 1})
    tokens = some_tokens(8)
    swapped = tokens[:, [6, 5, 4, 3, 2, 1, 0, 7]]
    first, second = (
        tiny_model.logits(config, tiny_model.initial(config, 0), x)[:, -1]
        for x in (tokens, swapped)
    )
    difference = (first - second).abs().max()
    assert difference < 1e-5 if encoding == "none" else difference > 1e-3


def test_models_of_one_seed_share_what_they_have_in_common() -> None:
    models = [tiny_model.initial(Config(*names, **SMALL), 3) for names in COMBINATIONS]
    for weights in models:
        for name, w in models[0].items():
            assert torch.equal(w, weights[name])
    assert not torch.equal(
        models[0]["embedding"], tiny_model.initial(Config("", ""), 4)["embedding"]
    )


# --- training ------------------------------------------------------------------------------------


@trained_combinations
def test_the_loss_falls_far_below_a_uniform_guess(attention: str, encoding: str, trained) -> None:
    run, _ = trained(attention, encoding)
    assert run.steps[0] == 0
    assert run.steps[-1] == STEPS
    assert len(run.losses) == len(run.steps) == train_tiny.POINTS + 1
    assert run.losses[0] > math.log(len(ALPHABET))
    for loss in (run.losses[-1], run.loss, run.loss_twice):
        assert loss < math.log(len(ALPHABET)) - 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("attention", "encoding"), [("softmax", "shaw"), ("linear", "rope")])
def test_a_seed_gives_one_result(attention: str, encoding: str, texts) -> None:
    def run(seed: int) -> tuple:
        return train_tiny.train(Config(attention, encoding, **SMALL), seed, texts, 8)

    (first, weights), (again, same), (other, _) = run(0), run(0), run(1)
    assert first == again
    assert all(torch.equal(w, same[name]) for name, w in weights.items())
    assert first.loss != other.loss


def test_the_learning_rate_rises_and_falls() -> None:
    shares = [train_tiny.share_of_rate(step, 100) for step in range(100)]
    assert shares[9] == shares[10] == max(shares) == 1.0
    assert (np.diff(shares[:10]) > 0).all()
    assert (np.diff(shares[10:]) < 0).all()
    assert 0 < shares[-1] < 0.001


# --- the twin ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["random", "trained"])
@trained_combinations
def test_jax_gives_the_logits_of_torch(attention: str, encoding: str, which: str, trained) -> None:
    jnp = pytest.importorskip("jax.numpy")
    import train_tiny_jax

    config = Config(attention, encoding, **SMALL)
    weights = (
        trained(attention, encoding)[1] if which == "trained" else tiny_model.initial(config, 1)
    )
    tokens = some_tokens(2 * config.context)
    answer = tiny_model.logits(config, weights, tokens).numpy()
    as_jax = {name: jnp.asarray(w.numpy()) for name, w in weights.items()}
    twin = train_tiny_jax.logits(config, as_jax, jnp.asarray(tokens.numpy()))
    assert np.ptp(answer) > 1  # logits that differ
    np.testing.assert_allclose(twin, answer, rtol=0, atol=TWINS)


@trained_combinations
def test_float64_leaves_no_difference(attention: str, encoding: str, trained) -> None:
    jax = pytest.importorskip("jax")
    import train_tiny_jax

    config = Config(attention, encoding, **SMALL)
    weights = {name: w.double() for name, w in trained(attention, encoding)[1].items()}
    tokens = some_tokens(2 * config.context)
    answer = tiny_model.logits(config, weights, tokens).numpy()
    with jax.enable_x64(True):
        as_jax = {name: jax.numpy.asarray(w.numpy()) for name, w in weights.items()}
        twin = np.asarray(train_tiny_jax.logits(config, as_jax, jax.numpy.asarray(tokens.numpy())))
    assert twin.dtype == np.float64
    # As TWINS, with 2**-53 for 2**-24: 1e-5 * 2**-29 = 2e-14; angles up to 64 add 64 * 2**-52.
    np.testing.assert_allclose(twin, answer, rtol=0, atol=1e-13)


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.exhaustive
def test_commands_write_and_read_results(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, texts
) -> None:
    pytest.importorskip("matplotlib", reason="draws the curves")
    pytest.importorskip("jax")
    import train_tiny_jax

    monkeypatch.setattr(train_tiny, "text", lambda: tuple(x.numpy() for x in texts))
    files = {"--out": tmp_path / "c.png", "--json": tmp_path / "r", "--save": tmp_path / "w.npz"}
    options = ["--steps", "2", "--seeds", "0", "5", "--attention", "linear", "--encodings", "rope"]
    train_tiny.main([*options, *(str(x) for option in files.items() for x in option)])
    printed = capsys.readouterr().out
    assert "linear     RoPE" in printed
    assert files["--out"].read_bytes().startswith(b"\x89PNG")
    results = json.loads(files["--json"].read_text("utf-8"))
    assert [run["seed"] for run in results["runs"]] == [0, 5]
    assert results["characters"] == [len(x) for x in texts]

    train_tiny_jax.main(files["--save"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["linear", "rope", "0"], ["linear", "rope", "5"]]
    assert all(0 < float(row[-1]) < TWINS for row in rows)


def test_shaw_without_scores_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        train_tiny.main(["--attention", "linear", "--encodings", "shaw"])
    assert "linear attention never forms" in capsys.readouterr().err


# --- the page ------------------------------------------------------------------------------------


def test_the_table_has_means_and_spreads() -> None:
    run = {"attention": "softmax", "encoding": "shaw", "loss": 1.0, "loss_twice": 2.0}
    results = {"context": 128, "runs": [run, run | {"loss": 2.0}]}
    columns, rows = tiny_results.summary(results)
    assert columns == ["attention", "positions", "loss at 128", "loss at 256"]
    assert rows == [["softmax", "Shaw", "1.500 (1.000 to 2.000)", "2.000 (2.000 to 2.000)"]]


def test_the_page_shows_three_runs_of_each_combination() -> None:
    results = json.loads((Path(tiny_results.__file__).parents[1] / "train_tiny.json").read_text())
    found = [(run["attention"], run["encoding"], run["seed"]) for run in results["runs"]]
    assert found == [(*names, seed) for names in COMBINATIONS for seed in (0, 1, 2)]
    fields = set(train_tiny.Run.__dataclass_fields__)
    assert all(set(run) == fields and run["steps"][-1] == 300 for run in results["runs"])
