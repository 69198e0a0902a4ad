"""Measure what a small trained model loses when keys of its cache move, stay, or never met.

A Llama of characters is trained on the text of docs/examples/tiny_shared.py, in windows of 128. Its
loss is that on text held out, in nats per character.
"""

from __future__ import annotations

import copy
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measured_group import Group, Rows

if TYPE_CHECKING:
    import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

CONTEXT, STEPS, SINKS, RECENT, NEXT = 128, 300, 4, 60, 32
"""Tokens of a window in training, its steps; tokens kept at the front and the end; tokens read."""
TOKENS, LAYERS, TURNS = 4096, 32, 9


@cache
def train() -> tuple[Any, torch.Tensor]:
    """Return the model, and windows of the text held out, each of 256 and ``NEXT`` tokens."""
    import tiny_shared
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tiny_shared.ALPHABET), hidden_size=128, intermediate_size=384,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    text, held_out = map(torch.from_numpy, tiny_shared.text())
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, STEPS, pct_start=0.1)
    for _ in range(STEPS):
        starts = torch.randint(len(text) - CONTEXT, (16, 1))
        tokens = text[starts + torch.arange(CONTEXT)]
        model(tokens, labels=tokens).loss.backward()
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.eval().requires_grad_(False)
    model.config.use_cache = True
    starts = torch.arange(0, len(held_out) - 2 * CONTEXT - NEXT, 700)[:, None]
    return model, held_out[starts + torch.arange(2 * CONTEXT + NEXT)]


def fill(model: Any, tokens: torch.Tensor) -> Any:
    return model(tokens).past_key_values


def loss(model: Any, kept: Any, tokens: torch.Tensor, position: int) -> float:
    """Return the loss on the next tokens, behind a cache, from a position on."""
    import torch

    at = (position + torch.arange(NEXT - 1)).expand(len(tokens), -1)
    logits = model(tokens[:, :-1], cache=copy.deepcopy(kept), position_ids=at).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def drops() -> Rows:
    """Return losses of a context twice as long as in training, and after most of it was dropped."""
    from rope_xp.integrations.transformers import drop, move_keys

    model, windows = train()
    seen, after = windows[:, : 2 * CONTEXT], windows[:, -NEXT:]
    kept, count = fill(model, seen), SINKS + RECENT
    rows = {"all": loss(model, kept, after, 2 * CONTEXT)}
    drop(kept, model, [(SINKS, 2 * CONTEXT - RECENT)])
    rows["moved"] = loss(model, kept, after, count)
    old = [*range(SINKS), *range(2 * CONTEXT - RECENT, 2 * CONTEXT)]
    move_keys(kept, model, None, old)  # as they were
    rows["unmoved, counted on"] = loss(model, kept, after, 2 * CONTEXT)
    rows["unmoved, counted anew"] = loss(model, kept, after, count)
    rest = fill(model, seen[:, old])
    rows["prefilled anew"] = loss(model, rest, after, count)
    return {name: {"loss": value} for name, value in rows.items()}


def joins() -> Rows:
    """Return losses behind a prefix and a chunk that were prefilled together, or alone."""
    from rope_xp.integrations.transformers import join, move_keys

    model, windows = train()
    half = (CONTEXT - NEXT) // 2
    prefix, chunk = windows[:, :half], windows[:, half : 2 * half]
    after = windows[:, 2 * half : 2 * half + NEXT]
    together = fill(model, windows[:, : 2 * half])
    rows = {"together": loss(model, together, after, 2 * half)}
    joined = fill(model, prefix)
    join(joined, fill(model, chunk), model)
    rows["joined"] = loss(model, joined, after, 2 * half)
    both = [*range(half), *range(half)]
    move_keys(joined, model, None, both)
    rows["unmoved"] = loss(model, joined, after, 2 * half)
    rows["prefix alone"] = loss(model, fill(model, prefix), after, half)
    rows["chunk alone"] = loss(model, fill(model, chunk), after, half)
    return {name: {"loss": value} for name, value in rows.items()}


def times() -> Rows:
    """Return how long it takes to move the bfloat16 keys of 32 layers, and to copy them once."""
    import numpy as np
    import torch
    from transformers import DynamicCache, LlamaConfig

    from rope_xp.integrations.transformers import move_keys

    torch.set_num_threads(1)
    config = LlamaConfig(num_hidden_layers=LAYERS, num_key_value_heads=8, head_dim=128)
    kept, keys = DynamicCache(config=config), torch.randn(1, 8, TOKENS, 128).bfloat16()
    for i in range(LAYERS):
        kept.update(keys.clone(), keys[..., :1].clone(), i)
    copies, positions = [keys.clone() for _ in range(LAYERS)], np.arange(TOKENS)
    best = {"move": 1e9, "copy": 1e9}
    for i in range(TURNS):
        starts = [time.perf_counter()]
        move_keys(kept, config, positions + 1000 * i, positions + 1000 * (i + 1))
        starts.append(time.perf_counter())
        for target, layer in zip(copies, kept.layers, strict=True):
            target.copy_(layer.keys)
        starts.append(time.perf_counter())
        for name, start, stop in zip(best, starts, starts[1:], strict=False):
            best[name] = min(best[name], 1e3 * (stop - start))
    return {"4096 tokens": best}


GROUPS: dict[str, Group] = {
    "drops": Group("", drops, "the mean", is_alone=False),
    "joins": Group("", joins, "the mean", is_alone=False),
    "moved caches": Group("ms", times, f"the shortest of {TURNS} turns"),
}
