"""Print the table of docs/benchmarks.md: how many times as fast as what users run today.

    python -m asv_benchmarks.report.rivals_table

4096 tokens into new arrays, median [min, max] of nine turns; each row in a process of its own.
"""

from asv_runner.benchmarks.mark import SkipNotImplemented

from asv_benchmarks import gradients
from asv_benchmarks.shared import common, contenders, rival_calls
from rope_xp._bench import clock
from rope_xp._bench.inputs import CannotMeasure

from .table import in_processes

ROWS = (
    ("formula of Hugging Face's Llama", "usual", "numpy:cpu"),
    ("", "usual", "torch:cpu"),
    ("", "usual", "jax:cpu"),
    ("the same, forward and backward", "gradients", "torch:cpu"),
    ("", "gradients", "jax:cpu"),
    ("`torch.compile` of it", "torch_compile", "torch:cpu"),
    ("rotary-embedding-torch", "rotary_embedding_torch", "torch:cpu"),
    ("`torch.onnx.ops.rotary_embedding`, given cos and sin", "torch_onnx", "torch:cpu"),
    ("onnxruntime's `RotaryEmbedding`, given cos and sin", "onnxruntime", "numpy:cpu"),
    ("transformers, one token", "transformers", "torch:cpu"),
)
"""What the page calls a rival, its name here, and where it runs."""
JITTED = "jax:cpu"


def cell(rival: str, name: str, dtype: str) -> str:
    """Return how many times as fast a call is, or a dash where there is nothing to compare."""
    try:
        if rival == "gradients":
            training = gradients.Training()
            training.setup(name, dtype)
            target, pair = training.target, (training.ours, training.usual)
        elif rival == "transformers":
            return _one_token(rival, name, dtype)
        else:
            layout = rival_calls.RIVALS[rival].layouts[0]
            target, *pair = contenders.pair(name, layout, dtype, "new", rival, common.TOKENS)
    except (CannotMeasure, SkipNotImplemented):
        return "-"
    return str(clock.times_as_fast(*clock.turns_of_seconds(target, common.REPEAT, *pair)))


def _one_token(rival: str, name: str, dtype: str) -> str:
    if dtype != "float32":
        return "-"
    target, *pair = contenders.pair(name, "half", dtype, "new", rival, 1, common.POSITION)
    ours, theirs = (clock.rounds_of_microseconds(target, c, *common.LOOPS) for c in pair)
    return str(clock.times_as_fast(ours, theirs))


def line(text: str, rival: str, name: str) -> str:
    """Return a row of the table."""
    where = f"{name.removesuffix(':cpu')}{', jitted' if name == JITTED else ''}"
    cells = " | ".join(cell(rival, name, dtype) for dtype in common.DTYPES)
    return f"| {text} | {where} | {cells} |"


def table() -> str:
    """Return the ratios as Markdown."""
    lines = in_processes(line, ROWS)
    heads = ["| times as fast as | in | float32 | bfloat16 |", "|---|---|---|---|"]
    return "\n".join(heads + lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
