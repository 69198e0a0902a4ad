"""Train small models to look back by a distance, and see what inexact angles cost them.

    python docs/examples/needle.py --seeds 0 1 2 --json docs/tools/needle.json

Each token holds a symbol and a distance of 1 to 48. The model must name the symbol that lies so far
back, so its attention must tell one distance from the next. Sequences start anywhere below position
2**20. Models are trained with one kind of angles and evaluated with all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rope_xp
from rope_xp._cli import terminal

BASE, HEADS, HEAD_DIM, SYMBOLS, DISTANCES, TOKENS, BATCH = 500000.0, 4, 32, 16, 48, 96, 32
ANGLES = ("exact", "float32 product", "bfloat16 tables", "bfloat16 product")
STARTS = {"4k": 2**12, "128k": 2**17, "1M": 2**20}
"""The bound of start positions in each evaluation."""
ROPE = rope_xp.RoPE(base=BASE, layout="half")


def compute_tables(positions: Tensor, angles: str) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (batch, tokens, r/2), as one kind of engine makes them."""
    if angles == "exact":
        return ROPE.cos_sin(positions, HEAD_DIM)
    frequencies = BASE ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    product = positions[..., None].float() * frequencies
    if angles == "bfloat16 product":
        product = (positions[..., None].bfloat16() * frequencies.bfloat16()).float()
    tables = product.cos(), product.sin()
    if angles == "bfloat16 tables":
        return tables[0].bfloat16().float(), tables[1].bfloat16().float()
    return tables


class Model(nn.Module):
    """Embeddings, one layer of causal attention with rotated q and k, and a layer behind it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        width = HEADS * HEAD_DIM
        self.dtype = dtype
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.distance = nn.Embedding(DISTANCES + 1, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.hidden, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, SYMBOLS)

    def forward(self, symbols: Tensor, distances: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        x = self.symbol(symbols) + self.distance(distances)
        qkv = self.qkv(x).to(self.dtype).unflatten(-1, (3, HEADS, HEAD_DIM))
        q, k = ROPE.with_tables(*tables).apply(qkv[..., 0, :, :], qkv[..., 1, :, :])
        q, k, v = (t.transpose(1, 2) for t in (q, k, qkv[..., 2, :, :]))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = attended.transpose(1, 2).flatten(2).to(x.dtype)
        return self.out(functional.gelu(self.hidden(attended)))  # type: ignore[no-any-return]  # a tensor


def draw_batch(bound: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return symbols, distances, positions and the symbols to name; the first tokens have none."""
    symbols = torch.randint(SYMBOLS, (BATCH, TOKENS), generator=generator)
    distances = torch.randint(1, DISTANCES + 1, (BATCH, TOKENS), generator=generator)
    starts = torch.randint(bound - TOKENS, (BATCH, 1), generator=generator)
    indices = torch.arange(TOKENS)
    targets = symbols.gather(1, (indices - distances).clamp(min=0))
    targets[:, :DISTANCES] = -100  # ignored by cross_entropy
    return symbols, distances, starts + indices, targets


def train(angles: str, dtype: torch.dtype, seed: int, steps: int) -> Model:
    """Return a model trained with one kind of angles at starts below 2**20."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Model(dtype)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for _ in range(steps):
        symbols, distances, positions, targets = draw_batch(STARTS["1M"], generator)
        logits = model(symbols, distances, compute_tables(positions, angles))
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


@torch.no_grad()
def evaluate(model: Model, angles: str, bound: int) -> dict[str, float]:
    """Return the mean loss in nats, and the share of symbols that a model names wrongly."""
    generator = torch.Generator().manual_seed(bound)
    total, wrong, count = 0.0, 0, 0
    for _ in range(8):
        symbols, distances, positions, targets = draw_batch(bound, generator)
        logits = model(symbols, distances, compute_tables(positions, angles))
        counted = targets >= 0
        losses = functional.cross_entropy(logits[counted], targets[counted], reduction="sum")
        total += losses.item()
        wrong += int((logits.argmax(-1) != targets)[counted].sum())
        count += int(counted.sum())
    return {"loss": total / count, "wrong": wrong / count}


def compute_means(report: dict[str, Any]) -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """Return the mean loss and share of errors over seeds, by dtype, both kinds and start."""
    groups: dict[tuple[str, str, str, str], list[dict[str, float]]] = {}
    for run in report["runs"]:
        for start, result in run["results"].items():
            key = run["dtype"], run["trained"], run["evaluated"], start
            groups.setdefault(key, []).append(result)
    names = ("loss", "wrong")
    return {
        key: tuple(statistics.fmean(result[name] for result in results) for name in names)  # type: ignore[misc]  # two names
        for key, results in groups.items()
    }


def summarise(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of the table of losses and errors."""
    means = compute_means(report)
    rows = []
    for dtype, trained, evaluated in dict.fromkeys(key[:3] for key in means):
        cells = (means[dtype, trained, evaluated, start] for start in STARTS)
        rows.append([dtype, trained, evaluated, *(f"{a:.2g} ({b:.1%})" for a, b in cells)])
    return ["q and k", "trained with", "evaluated with", *STARTS], rows


def format_markdown(report: dict[str, Any]) -> str:
    """Return the errors at starts below 2**20, trained with by evaluated with."""
    means = compute_means(report)
    lines = [f"| q and k | trained with | {' | '.join(ANGLES)} |", "|---" * (2 + len(ANGLES)) + "|"]
    for dtype, trained in dict.fromkeys(key[:2] for key in means):
        cells = (f"{means[dtype, trained, angles, '1M'][1]:.1%}" for angles in ANGLES)
        lines.append(f"| {dtype} | {trained} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Train and evaluate what the command line asks for, and print losses and errors."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--steps", type=terminal.count, default=600, metavar="N", help="default %(default)s")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="default 0")
    add("--json", type=Path, metavar="FILE", help="results to write")
    options = parser.parse_args(argv)
    runs: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        for trained in ANGLES:
            for seed in options.seeds:
                model = train(trained, dtype, seed, options.steps)
                for evaluated in ANGLES:
                    results = {
                        name: evaluate(model, evaluated, bound) for name, bound in STARTS.items()
                    }
                    name = str(dtype).removeprefix("torch.")
                    run = {"dtype": name, "trained": trained, "evaluated": evaluated}
                    runs.append(run | {"seed": seed, "results": results})
    report = {"torch": torch.__version__, "steps": options.steps, "runs": runs}
    terminal.table(*summarise(report), text_columns=3)
    if options.json:
        options.json.write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
