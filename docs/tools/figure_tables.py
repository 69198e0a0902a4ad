"""Make the tables of measured figures, as Markdown, from docs/measurements.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from figures import describe, error, rows, two

Rows = Mapping[str, Mapping[str, float]]
PREFILL = {
    "numpy": ("float32", "float16", "bfloat16"),
    "torch": ("float32", "bfloat16"),
    "jax": ("float32", "bfloat16"),
}
LOST = 0.1
"""Of the largest key: a key that is off by more is of no use."""


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    made = [
        f"|{'|'.join(f' {text} ' if text else ' ' for text in line)}|" for line in (heads, *lines)
    ]
    return "\n".join([made[0], f"|{'---|' * len(heads)}", *made[1:], ""])


def cell(held: Mapping[str, float], column: str, form: Callable[[float], str] = two) -> str:
    """Return a figure, or of "a / b" the ratio; empty where it was not measured."""
    parts = column.split(" / ")
    if not all(part in held for part in parts):
        return ""
    return form(held[parts[0]] / held[parts[1]] if len(parts) == 2 else held[column])


def table(
    corner: str, found: Rows, heads: Mapping[str, str], form: Callable[[float], str] = two
) -> str:
    """Return a table of columns and ratios, under heads of their own."""
    lines = [(row, *(cell(held, column, form) for column in heads)) for row, held in found.items()]
    return markdown((corner, *heads.values()), lines)


def named(group: str, names: Mapping[str, str]) -> Rows:
    """Return some rows of a group, by the names that a page gives them."""
    return {text: rows(group)[row] for row, text in names.items()}


def starting(group: str, start: str) -> Rows:
    """Return the rows that start so, without their start."""
    return {
        row.removeprefix(start): held for row, held in rows(group).items() if row.startswith(start)
    }


def prefill() -> Rows:
    """Return the rows of 4096 tokens of all libraries."""
    return {
        f"{library} {dtype}": rows(f"prefill_{library}")[dtype]
        for library, dtypes in PREFILL.items()
        for dtype in dtypes
    }


def errors(corner: str, found: Rows) -> str:
    """Return a table of errors by its own columns."""
    return table(corner, found, {column: column for column in next(iter(found.values()))}, error)


def readme() -> str:
    """Return what README says of 4096 tokens."""
    found = {name: held for name, held in prefill().items() if "float16" not in name.split()}
    del found["jax bfloat16"]
    ours = {name: found[name] for name in sorted(found, key=lambda name: "torch" not in name)}
    heads = {
        "new": "rope_xp, ms",
        "formula": "formula, ms",
        "formula / new": "times as fast",
        "compiled formula / new": "as the formula compiled",
    }
    return table("", {f"{n}{', jitted' * ('jax' in n)}": held for n, held in ours.items()}, heads)


def norm() -> str:
    """Return what a norm costs in the same pass, and apart from it."""
    eager = ("new", "norm", "norm, formula", "norm, formula, compiled")
    # In jax calls with a norm were jitted, and so is what they are compared with.
    jitted = ("jitted", "jitted norm", "", "norm, formula")
    trained = ("rope_xp", "norm", "norm, formula", "")
    lines = []
    for name, held in prefill().items():
        in_jax = name.startswith("jax")
        columns = jitted if in_jax else eager
        text = f"{name}{', jitted' * in_jax}, ms"
        lines.append((text, *(cell(held, column) for column in columns)))
    for name in ("torch float32", "torch bfloat16"):
        held = rows("training")[name]
        text = f"{name}, forward and backward, ms"
        lines.append((text, *(cell(held, column) for column in trained)))
    for name in ("numpy", "torch"):
        held = rows("one_token")[name]
        lines.append((f"one token, {name}, us", *(cell(held, column) for column in eager)))
    heads = ("", "rotation alone", "with `norm=`", "RMSNorm and formula, eager")
    return markdown((*heads, "compiled or jitted"), lines)


def rivals() -> str:
    """Return how 4096 tokens compare with packages."""
    names = {
        "rotary_embedding_torch": "rotary-embedding-torch",
        "torch_onnx": "`torch.onnx.ops.rotary_embedding`, given cos and sin",
        "onnxruntime": "onnxruntime's `RotaryEmbedding`, given cos and sin",
    }
    found = {}
    for row, held in rows("rivals").items():
        name, dtype = row.split()
        found[f"{names[name]}, {dtype}"] = held
    heads = {
        "rival": "ms",
        "rival / rope_xp": "rope_xp into new arrays, times as fast",
        "rival / rope_xp out": "into given arrays, times as fast",
    }
    return table("4096 tokens", found, heads)


def engines() -> str:
    """Return who rotates in place, the fastest of a row in bold."""
    heads = {
        "rope_xp torch": "rope_xp, torch",
        "rope_xp numpy": "rope_xp, numpy",
        "engine": "operator in C++",
        "onnxruntime": "onnxruntime",
        "mlx": "mlx",
        "formula": "formula, torch",
    }
    lines = []
    for row, held in rows("engines").items():
        best = min(held, key=held.__getitem__)
        told = (f"**{cell(held, key)}**" if key == best else cell(held, key) for key in heads)
        lines.append((row, *told))
    return markdown(("tokens, dtype, layout; us", *heads.values()), lines)


def cliffs() -> str:
    """Return cases beside their neighbours, in bold what is less than half as fast."""
    lines = []
    for row, held in rows("cliffs").items():
        limit = 1.0 if row.endswith("the formula") else 0.5
        told = (
            f"**{cell(held, key)}**" if held.get(key, limit) < limit else cell(held, key)
            for key in ("numpy", "torch")
        )
        lines.append((row, *told))
    return markdown(("times as fast", "numpy", "torch"), lines)


def noise() -> str:
    """Return the spread of asv's figures, the largest first."""
    found = sorted(rows("noise").items(), key=lambda row: -row[1]["max"] / row[1]["min"])
    heads = {"min": "min", "median": "median", "max": "max", "max / min": "max / min"}
    return table("", {f"`{row}`": held for row, held in found}, heads, lambda x: f"{x:.3g}")


def dense_form() -> str:
    """Return the dense form and eq. 34, with the memory of 512 matrices and tables of float32."""
    found = {
        row: {**held, "matrices": 512 * 4 * int(row) ** 2, "tables": 512 * 4 * int(row)}
        for row, held in rows("dense_form").items()
    }
    lines = [
        (
            *(row, cell(held, "dense"), cell(held, "eq. 34"), cell(held, "dense / eq. 34")),
            *(f"{held[key] / 2**20:g}" for key in ("matrices", "tables")),
        )
        for row, held in found.items()
    ]
    heads = ("head_dim", "dense, ms", "eq. 34, ms", "times as fast")
    return markdown((*heads, "matrices, MiB", "tables, MiB"), lines)


def devices() -> str:
    """Return what each device holds of 10,485,760 tokens."""
    found = {
        count: {"tokens": 10 * 2**20 / int(count), **held}
        for count, held in rows("devices").items()
    }
    heads = {
        "tokens": "tokens per device",
        "q and k": "q and k per device, MiB",
        "extra": "extra memory, at most, MiB",
        "collectives": "collectives",
    }
    return table("devices", found, heads, lambda x: f"{x:.0f}")


def accuracy() -> str:
    """Return errors of cos and sin; libraries that agree share a row."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, held in rows("accuracy").items():
        method, _, library = name.partition(": ")
        together.setdefault((method, tuple(map(error, held.values()))), []).append(library)
    lines = [(f"{method}: {', '.join(names)}", *told) for (method, told), names in together.items()]
    blocks = next(iter(rows("accuracy").values()))
    return markdown((COS_SIN, *blocks), lines)


COS_SIN = "largest error of cos and sin, positions up to"
TABLES: dict[str, Callable[[], str]] = {
    "README speed": readme,
    "README one token": lambda: table(
        "one token, us",
        rows("one_token"),
        {"new": "new arrays", "in place": "in place", "formula": "formula"},
    ),
    "accuracy": accuracy,
    "angles": lambda: table(
        "32 layers, us", rows("angles"), {"apply": "`apply`", "at": "`at`, then `apply`"}
    ),
    "chunks": lambda: table(
        "chunk, KiB", starting("thresholds", "chunk, "), {"time": "4096 tokens, us"}
    ),
    "cliffs": cliffs,
    "dense form": dense_form,
    "devices": devices,
    "drift": lambda: errors("", rows("drift")),
    "engines": engines,
    "frequencies": lambda: table(
        "",
        named(
            "frequencies",
            {
                "product": "float32 product of position and frequency",
                "float32": "`apply_frequencies`, float32",
                "float64": "`apply_frequencies`, float64",
            },
        ),
        {"error": "error of cos and sin, at position 10**6"},
        error,
    ),
    "given memory": lambda: table(
        "into given arrays, times as fast as",
        {name: held for name, held in prefill().items() if "out" in held},
        {
            "out": "ms",
            "in place": "in place, ms",
            "copy into / out": "copying into them",
            "new / bhsd": "heads first: as in order",
            "slice / slice of fused": "part of a projection: as alone",
        },
    ),
    "in graphs": lambda: table("one token", rows("in_graphs"), {"time": "one more in a graph, us"}),
    "layers": lambda: table(
        "one token, us",
        rows("layers"),
        {"layer": "layer", "apply": "`rope.apply`", "empty layer": "a layer that does nothing"},
    ),
    "limits": lambda: table(
        "numpy, tokens and dtype; us",
        rows("limits"),
        {
            "in place": "in place",
            "multiply": "`np.multiply(x, 1, out=x)`",
            "out": "`out=`",
            "copy into": "`np.copyto`",
        },
    ),
    "machine": lambda: describe("prefill_torch"),
    "mlx": lambda: table(
        "tokens; us",
        rows("mlx"),
        {
            "fast": "`mx.fast.rope`",
            "compiled": "`RoPE.rotate`, compiled by `mx.compile`",
            "eager": "`RoPE.rotate`, eager",
        },
    ),
    "drops": lambda: table(
        "cache",
        named(
            "drops",
            {
                "all": "all 256 tokens",
                "moved": "64 tokens left, moved by `drop`",
                "prefilled anew": "the same 64 tokens, prefilled again",
                "unmoved, counted on": "64 tokens left, not moved; the next is at 256",
                "unmoved, counted anew": "64 tokens left, not moved; the next is at 64",
            },
        ),
        {"loss": "loss, nats"},
        "{:.2f}".format,
    ),
    "joins": lambda: table(
        "cache",
        named(
            "joins",
            {
                "together": "prefix and chunk, prefilled together",
                "joined": "joined by `join`",
                "unmoved": "joined, the chunk not moved",
                "chunk alone": "the chunk alone",
            },
        ),
        {"loss": "loss, nats"},
        "{:.2f}".format,
    ),
    "moves": lambda: table(
        "keys",
        named(
            "moves",
            {
                "float32, slots": "float32, in slots (`slots`)",
                "float32, whole": "float32, whole array; in jax without x64 also in slots",
                "bfloat16, slots": "bfloat16",
            },
        ),
        {"1": "one move", "1000": "1,000 moves"},
        lambda x: error(x) if x < LOST else f"{error(x)}, unusable",
    ),
    "new memory": lambda: table(
        "into new arrays, times as fast as",
        prefill(),
        {
            "new": "ms",
            "copy / new": "a copy to new arrays",
            "jit x * 2 / new": "`jit(x * 2)`",
            "formula / new": "the formula",
            "compiled formula / new": "`torch.compile` of it",
        },
    ),
    "noise": noise,
    "norm": norm,
    "one token": lambda: table(
        "one token, us",
        rows("one_token"),
        {
            "new": "new arrays",
            "out": "`out=`",
            "in place": "in place",
            "norm": "`norm=`",
            "formula": "formula",
            "transformers": "transformers",
            "norm, formula": "RMSNorm and formula",
        },
    ),
    "packages": lambda: errors(COS_SIN, rows("packages")),
    "ways": lambda: table(
        "one token, float32; times of the formula",
        rows("ways"),
        {"numpy": "numpy", "torch": "torch", "torch, gradients": "torch, with gradients"},
    ),
    "peak": lambda: table(
        "peak, in sizes of the results",
        rows("peak"),
        {"rope_xp": "rope_xp", "formula": "formula"},
    ),
    "rivals": rivals,
    "scores of Llama 3": lambda: errors("Llama 3, base 5e5", starting("scores", "Llama 3: ")),
    "scores of Qwen2.5-1M": lambda: errors(
        "Qwen2.5-1M, base 1e7", starting("scores", "Qwen2.5-1M: ")
    ),
    "speed": lambda: table(
        "4096 tokens",
        prefill(),
        {"new": "rope_xp, ms", "formula": "formula, ms", "formula / new": "times as fast"},
    ),
    "streaming": lambda: table(
        "q and k, KiB",
        starting("thresholds", "streaming, "),
        {"through": "through caches, us", "past": "past them, us"},
    ),
    "threads": lambda: table(
        "q and k, KiB",
        starting("thresholds", "threads, "),
        {"1": "1 thread, us", "2": "2 threads, us"},
    ),
    "training": lambda: table(
        "forward and backward, 4096 tokens",
        rows("training"),
        {"rope_xp": "rope_xp, ms", "formula": "formula, ms", "formula / rope_xp": "times as fast"},
    ),
}
