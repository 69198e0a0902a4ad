"""Rotating q of video and image models, over the functions with which diffusers does it.

Of Flux at 1024 x 1024 pixels with 512 tokens of text, and Wan at 81 frames of 1280 x 720 and more:
131,040 tokens. Time over time, and memory at the peak over memory at the peak.
"""

import functools
import importlib
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from rope_xp._bench import clock, targets

from .shared import common, peak

SHAPES = {"flux": (4608, 24), "wan": (131_040, 12)}
"""Tokens and heads, of 128 components."""


class Rotate:
    version = "1"
    params = (list(SHAPES), ["float32", "bfloat16"])
    param_names = ("model", "dtype")
    timeout = 600

    def setup(self, model: str, dtype: str) -> None:
        try:
            torch = importlib.import_module("torch")
            module = importlib.import_module(f"diffusers.models.transformers.transformer_{model}")
        except ImportError as error:
            raise SkipNotImplemented(str(error)) from error
        rotations = importlib.import_module("rope_xp.integrations._diffusion.rotations")
        methods = importlib.import_module("rope_xp.integrations._methods")
        processor = module.FluxAttnProcessor if model == "flux" else module.WanAttnProcessor
        ((name, function),) = methods.functions_called(processor)
        known = rotations.ROTATIONS[rotations.find_key(name, function)]
        ours = functools.partial(rotations.rotate_like, known, function)
        tokens, heads = (common.TOKENS, 2) if common.QUICK else SHAPES[model]
        x = torch.ones((1, tokens, heads, 128), dtype=getattr(torch, dtype))
        table = torch.ones((tokens, 128))
        wide = table[None, :, None]
        tables: tuple[Any, ...] = ((table, table),) if model == "flux" else (wide, wide)
        options = {"sequence_dim": 1} if model == "flux" else {}
        self.calls = [lambda f=f: (f(x, *tables, **options),) for f in (ours, function)]

    def track_time_over(self, model: str, dtype: str) -> float:
        target = targets.find("torch:cpu")
        return common.over(*clock.best_seconds(target, min(common.REPEAT, 3), *self.calls))

    def track_peak_over(self, model: str, dtype: str) -> float:
        peaks = []
        for call in self.calls:
            kept = call()  # whose memory no later call is given
            peaks.append(max(peak.host(call), 1.0))
            del kept
        return common.over(*peaks)
