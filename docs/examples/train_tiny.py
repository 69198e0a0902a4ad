"""Train small language models of characters that differ in how they know positions.

    python docs/examples/train_tiny.py
    python docs/examples/train_tiny.py --seeds 0 1 2 --json results.json --save weights.npz

Each combination of attention (softmax or linear, causal) and encoding of positions (none,
sinusoidal, Shaw's, RoPE) is trained from each seed, and its loss is taken on text that is held
out. Models of one seed start from the same weights as far as they have the same, and see the same
text in the same order. Hyperparameters are the same for all, and were searched for none.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tiny_model
import tiny_results
import torch
from tiny_shared import COMBINATIONS, Config, Saved, loss_of_counts, save, text
from torch import Tensor
from torch.nn import functional

from rope_xp._cli import terminal

BATCH = 16
"""Windows of a step."""
RATE, WARM_UP = 2e-3, 0.1
"""The highest learning rate, and the share of steps until it is reached."""
POINTS = 20
"""Of a curve."""
EVERY = 6
"""One window in so many is for the curve; the loss at the end is that of all."""


@dataclass(frozen=True)
class Run:
    """What came of training one model. Losses are cross-entropies, in nats per character."""

    attention: str
    encoding: str
    seed: int
    steps: list[int]
    losses: list[float]
    """On some of the text held out, after so many steps."""
    loss: float
    """At the end, on all of it."""
    loss_twice: float
    """On the same characters, in windows twice as long as in training."""


def train(
    config: Config,
    seed: int,
    texts: tuple[Tensor, Tensor],
    steps: int,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[Run, tiny_model.Weights]:
    """Train a model; ``told`` is called with its latest loss before each step."""
    train_text, held_out = texts
    long = 2 * config.context
    held_out = held_out[: (len(held_out) - 1) // long * long + 1]
    windows = cut(held_out, config.context)
    at = sorted({round(steps * i / POINTS) for i in range(POINTS + 1)})
    losses: list[float] = []
    weights = {name: w.requires_grad_() for name, w in tiny_model.initial(config, seed).items()}
    optimiser = torch.optim.AdamW(weights.values(), betas=(0.9, 0.95), weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps + 1):
        if step in at:
            losses.append(loss_on(config, weights, windows[::EVERY]))
        if step == steps:
            break
        told(f"{config.attention}, {config.encoding}, seed {seed}: {losses[-1]:.3f}")
        starts = torch.randint(len(train_text) - config.context, (BATCH, 1), generator=generator)
        batch = train_text[starts + torch.arange(config.context + 1)]
        optimiser.param_groups[0]["lr"] = RATE * share_of_rate(step, steps)
        optimiser.zero_grad()
        loss(config, weights, batch).backward()
        optimiser.step()
    weights = {name: w.detach() for name, w in weights.items()}
    at_end = (loss_on(config, weights, cut(held_out, n)) for n in (config.context, long))
    return Run(config.attention, config.encoding, seed, at, losses, *at_end), weights


def share_of_rate(step: int, steps: int) -> float:
    """Return what a step's learning rate is of the highest: up a line, down a cosine to zero."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))


def cut(tokens: Tensor, length: int) -> Tensor:
    """Return windows of length + 1 tokens, each beginning with the last one of that before it."""
    return torch.cat([tokens[:-1].reshape(-1, length), tokens[length::length, None]], 1)


def loss(config: Config, weights: tiny_model.Weights, windows: Tensor) -> Tensor:
    """Return the mean cross-entropy of each token of windows but the first, given those before."""
    logits = tiny_model.logits(config, weights, windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def loss_on(config: Config, weights: tiny_model.Weights, windows: Tensor) -> float:
    """Return the loss on any number of windows, some at a time."""
    total = sum(loss(config, weights, part).item() * len(part) for part in windows.split(32))
    return total / len(windows)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = made.add_argument
    attentions, encodings = (
        list(dict.fromkeys(names)) for names in zip(*COMBINATIONS, strict=True)
    )
    add("--steps", type=terminal.count, default=300, metavar="N", help="default %(default)s")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="default 0")
    add("--encodings", nargs="+", choices=encodings, default=encodings, help="default: all")
    add("--attention", nargs="+", choices=attentions, default=attentions, help="default: both")
    add("--threads", type=terminal.count, metavar="N", help="of torch; default: as torch chooses")
    out = "picture to write, default %(default)s"
    add("--out", type=Path, default=Path("curves.png"), metavar="FILE.png", help=out)
    add("--json", type=Path, metavar="FILE", help="results to write")
    add("--save", type=Path, metavar="FILE.npz", help="weights to write, for train_tiny_jax.py")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Train what the command line asks for, and report."""
    options = parser().parse_args(argv)
    todo = [
        (Config(attention, encoding), seed)
        for attention, encoding in COMBINATIONS
        if attention in options.attention and encoding in options.encodings
        for seed in options.seeds
    ]
    if not todo:
        parser().error("Shaw's encoding is a part of scores, which linear attention never forms")
    if options.threads:
        torch.set_num_threads(options.threads)
    arrays = text()
    counted = [loss_of_counts(*arrays, before) for before in range(3)]
    train_text, held_out = texts = tuple(map(torch.from_numpy, arrays))
    python = platform.python_version()
    print(f"text: {len(train_text):,} characters, {len(held_out):,} held out (Python {python})")
    runs, saved = [], []
    with terminal.progress(len(todo) * options.steps) as told:
        for config, seed in todo:
            run, weights = train(config, seed, texts, options.steps, told)
            runs.append(asdict(run))
            prompt = held_out[None, : config.context]
            answer = tiny_model.logits(config, weights, prompt).numpy()
            as_numpy = {name: w.numpy() for name, w in weights.items()}
            saved.append(Saved(config, seed, as_numpy, prompt.numpy(), answer))
    results = {
        "python": python,
        "torch": torch.__version__,
        "characters": [len(train_text), len(held_out)],
        "context": todo[0][0].context,
        "characters of a step": BATCH * todo[0][0].context,
        "loss of counts": counted,
        "runs": runs,
    }
    print(tiny_results.UNIT)
    terminal.table(*tiny_results.summary(results), text_columns=2)
    print("by counts alone, after 0, 1 and 2 characters:", *(f"{loss:.3f}" for loss in counted))
    if options.json:
        options.json.write_text(json.dumps(results) + "\n", encoding="utf-8")
    if options.save:
        save(options.save, saved)
    tiny_results.draw(results, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
