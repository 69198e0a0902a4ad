"""Make the tables of measured figures, as Markdown, from docs/measurements.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from figures import describe, error, rows, two

PREFILL = {
    f"{library} {dtype}": (f"prefill_{library}", dtype)
    for library, dtypes in (
        ("numpy", ("float32", "float16", "bfloat16")),
        ("torch", ("float32", "bfloat16")),
        ("jax", ("float32", "bfloat16")),
    )
    for dtype in dtypes
}
ONE_TOKEN = ("numpy", "torch", "jax")


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    made = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in made).replace("| --- ", "|---")


def cell(held: dict[str, float], *columns: str) -> str:
    """Return a figure, or the first over the second; empty where it was not measured."""
    if not all(column in held for column in columns):
        return ""
    if len(columns) == 1:
        return two(held[columns[0]])
    return two(held[columns[0]] / held[columns[1]])


def readme() -> str:
    """Return what README says of 4096 tokens."""
    lines = []
    for name in (
        "torch float32",
        "torch bfloat16",
        "numpy float32",
        "numpy bfloat16",
        "jax float32",
    ):
        held = _prefill(name)
        jitted = " (jitted)" if name.startswith("jax") else ""
        ratio = cell(held, "formula", "new") + jitted
        if "compiled formula" in held:
            ratio += f", compiled {cell(held, 'compiled formula', 'new')}"
        lines.append((name, cell(held, "new"), ratio))
    return markdown(("", "rope_xp, ms", "times as fast as the formula"), lines)


def readme_one_token() -> str:
    """Return what README says of one token."""
    return one_token(("new", "in place", "formula"))


def _prefill(name: str) -> dict[str, float]:
    group, dtype = PREFILL[name]
    return rows(group)[dtype]


def speed() -> str:
    """Return 4096 tokens into new arrays, and the formula."""
    lines = [
        (
            name,
            *(cell(_prefill(name), key) for key in ("new", "formula")),
            cell(_prefill(name), "formula", "new"),
        )
        for name in PREFILL
    ]
    return markdown(("4096 tokens", "rope_xp, ms", "formula, ms", "times as fast"), lines)


def one_token(
    columns: Sequence[str] = (
        "new",
        "out",
        "in place",
        "norm",
        "formula",
        "transformers",
        "norm, formula",
    ),
) -> str:
    """Return microseconds of one token."""
    heads = {
        "new": "new arrays",
        "out": "`out=`",
        "norm": "`norm=`",
        "norm, formula": "RMSNorm and formula",
    }
    return _table("one token, us", rows("one_token"), {c: heads.get(c, c) for c in columns})


def _table(
    corner: str,
    found: dict[str, dict[str, float]],
    heads: dict[str, str],
    form: Callable[[float], str] = two,
) -> str:
    """Return a table of columns under heads of their own."""
    lines = [
        (row, *(form(held[column]) if column in held else "" for column in heads))
        for row, held in found.items()
    ]
    return markdown((corner, *heads.values()), lines)


def new_memory() -> str:
    """Return how 4096 tokens into new arrays compare with what else runs."""
    others = {
        "copy": "a copy to new arrays",
        "jit x * 2": "`jit(x * 2)`",
        "formula": "the formula",
        "compiled formula": "`torch.compile` of it",
    }
    lines = [
        (
            name,
            cell(_prefill(name), "new"),
            *(cell(_prefill(name), other, "new") for other in others),
        )
        for name in PREFILL
    ]
    return markdown(("into new arrays, times as fast as", "ms", *others.values()), lines)


def given_memory() -> str:
    """Return how 4096 tokens into given arrays compare with a copy, and views with whole arrays."""
    heads = (
        "ms",
        "in place, ms",
        "copying into them",
        "heads first: as in order",
        "part of a projection: as alone",
    )
    lines = []
    for name in PREFILL:
        held = _prefill(name)
        if "out" in held:
            pairs = (("copy into", "out"), ("new", "bhsd"), ("slice", "slice of fused"))
            ratios = (cell(held, *pair) for pair in pairs)
            lines.append((name, cell(held, "out"), cell(held, "in place"), *ratios))
    return markdown(("into given arrays, times as fast as", *heads), lines)


def norm() -> str:
    """Return what a norm costs in the same pass, and apart from it."""
    lines = []
    for name in PREFILL:
        held = _prefill(name)
        alone = "jitted" if "jitted" in held else "new"
        jitted = ", jitted" if alone == "jitted" else ""
        apart = cell(held, "norm, formula")
        compiled = cell(held, "norm, formula, compiled")
        both = ("", apart) if jitted else (apart, compiled)
        lines.append((f"{name}{jitted}, ms", cell(held, alone), cell(held, "norm"), *both))
    for name in ("torch float32", "torch bfloat16"):
        held = rows("training")[name]
        shown = (cell(held, key) for key in ("rope_xp", "norm", "norm, formula"))
        lines.append((f"{name}, forward and backward, ms", *shown, ""))
    for name in ("numpy", "torch"):
        held = rows("one_token")[name]
        keys = ("new", "norm", "norm, formula", "norm, formula, compiled")
        lines.append((f"one token, {name}, us", *(cell(held, key) for key in keys)))
    heads = (
        "",
        "rotation alone",
        "with `norm=`",
        "RMSNorm and formula, eager",
        "compiled or jitted",
    )
    return markdown(heads, lines)


def training() -> str:
    """Return gradients, ours and the formula's."""
    lines = [
        (name, cell(held, "rope_xp"), cell(held, "formula"), cell(held, "formula", "rope_xp"))
        for name, held in rows("training").items()
    ]
    return markdown(
        ("forward and backward, 4096 tokens", "rope_xp, ms", "formula, ms", "times as fast"), lines
    )


def rivals() -> str:
    """Return how 4096 tokens compare with packages."""
    names = {
        "rotary_embedding_torch": "rotary-embedding-torch",
        "torch_onnx": "`torch.onnx.ops.rotary_embedding`, given cos and sin",
        "onnxruntime": "onnxruntime's `RotaryEmbedding`, given cos and sin",
    }
    lines = []
    for key, held in rows("rivals").items():
        name, dtype = key.split()
        ratios = (cell(held, "rival", ours) for ours in ("rope_xp", "rope_xp out"))
        lines.append((names[name], dtype, cell(held, "rival"), *ratios))
    heads = ("4096 tokens", "", "ms", "rope_xp into new arrays, times as fast", "into given arrays")
    return markdown(heads, lines)


def engines() -> str:
    """Return microseconds of who rotates in place, the fastest in bold."""
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
        best = min(held.values())
        told = (
            (f"**{cell(held, key)}**" if held[key] == best else cell(held, key))
            if key in held
            else ""
            for key in heads
        )
        lines.append((row, *told))
    return markdown(("tokens, dtype, layout; us", *heads.values()), lines)


def limits() -> str:
    """Return numpy with given memory, beside passes that compute nothing."""
    heads = {
        "in place": "in place",
        "multiply": "`np.multiply(x, 1, out=x)`",
        "out": "`out=`",
        "copy into": "`np.copyto`",
    }
    return _table("numpy, tokens and dtype; us", rows("limits"), heads)


def angles() -> str:
    """Return 32 layers by positions and by angles."""
    return _table("32 layers, us", rows("angles"), {"apply": "`apply`", "at": "`at`, then `apply`"})


def in_graphs() -> str:
    """Return one rotation more in a graph."""
    names = {"llvm": "llvm", "portable": "portable", "chosen": "as it is", "formula": "formula"}
    found = {names[row]: held for row, held in rows("in_graphs").items()}
    heads = {"positions": "by positions", "angles": "by angles"}
    return _table("one more in a graph, us", found, heads)


def layers() -> str:
    """Return what a layer adds to a call."""
    lines = [
        (name, cell(held, "layer"), cell(held, "apply"), cell(held, "empty layer"))
        for name, held in rows("layers").items()
    ]
    heads = ("one token, us", "layer", "`rope.apply`", "a layer that does nothing")
    return markdown(heads, lines)


def mlx() -> str:
    """Return mlx's own rotation and ours."""
    found = rows("mlx")
    names = {
        "fast": "`mx.fast.rope`",
        "compiled": "`RoPE.rotate`, compiled by `mx.compile`",
        "eager": "`RoPE.rotate`, eager",
    }
    lines = [(text, *(two(held[key]) for held in found.values())) for key, text in names.items()]
    return markdown(("us", "one token", "512 tokens"), lines)


def cliffs() -> str:
    """Return cases beside their neighbours, in bold what is less than half as fast."""
    lines = []
    for name, held in rows("cliffs").items():
        limit = 1.0 if name.endswith("the formula") else 0.5
        told = (
            (f"**{two(held[key])}**" if held[key] < limit else two(held[key]))
            if key in held
            else ""
            for key in ("numpy", "torch")
        )
        lines.append((name, *told))
    return markdown(("times as fast", "numpy", "torch"), lines)


def noise() -> str:
    """Return the spread of asv's figures, the largest first."""
    found = sorted(rows("noise").items(), key=lambda row: -row[1]["max"] / row[1]["min"])
    lines = [
        (f"`{name}`", *(f"{held[key]:.3g}" for key in held), f"{held['max'] / held['min']:.2f}")
        for name, held in found
    ]
    return markdown(("", "min", "median", "max", "max / min"), lines)


def dense_form() -> str:
    """Return the dense form and eq. 34, with the memory of 512 matrices and tables of float32."""
    lines = []
    for head_dim, held in rows("dense_form").items():
        d = int(head_dim)
        sizes = (f"{512 * 4 * d * d / 2**20:g}", f"{512 * 4 * d / 2**20:g}")
        times = (cell(held, "dense"), cell(held, "eq. 34"), cell(held, "dense", "eq. 34"))
        lines.append((head_dim, *times, *sizes))
    heads = ("head_dim", "dense, ms", "eq. 34, ms", "times as fast", "matrices, MiB", "tables, MiB")
    return markdown(heads, lines)


def _threshold(kind: str, corner: str, heads: dict[str, str]) -> str:
    found = {
        row.partition(", ")[2]: held
        for row, held in rows("thresholds").items()
        if row.startswith(kind)
    }
    return _table(corner, found, heads)


def threads() -> str:
    """Return one thread and two, by size."""
    return _threshold("threads", "q and k, KiB", {"1": "1 thread, us", "2": "2 threads, us"})


def streaming() -> str:
    """Return results through caches and past them, by size."""
    heads = {"through": "through caches, us", "past": "past them, us"}
    return _threshold("streaming", "q and k, KiB", heads)


def chunks() -> str:
    """Return sizes of chunks of numpy."""
    return _threshold("chunk", "chunk, KiB", {"time": "4096 tokens, us"})


def accuracy() -> str:
    """Return errors of cos and sin; libraries that agree share a row."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    found = rows("accuracy")
    for name, held in found.items():
        method, _, library = name.partition(": ")
        together.setdefault((method, tuple(map(error, held.values()))), []).append(library)
    lines = [(f"{method}: {', '.join(names)}", *told) for (method, told), names in together.items()]
    blocks = next(iter(found.values()))
    return markdown(("largest error of cos and sin, positions up to", *blocks), lines)


def _errors(corner: str, group: str, prefix: str = "") -> str:
    found = {
        r.removeprefix(prefix): held for r, held in rows(group).items() if r.startswith(prefix)
    }
    heads = {column: column for column in next(iter(found.values()))}
    return _table(corner, found, heads, error)


def moves() -> str:
    """Return errors of keys that were moved."""
    names = {
        "float32, slots": "float32, in slots (`slots`)",
        "float32, whole": "float32, whole array; in jax without x64 also in slots",
        "bfloat16, slots": "bfloat16",
    }
    lines = []
    for key, text in names.items():
        held = rows("moves")[key]
        # From a tenth of the largest key on, a key is lost.
        told = [error(x) if x < 0.1 else f"{error(x)}: unusable" for x in held.values()]
        lines.append((text, *told))
    return markdown(("keys", "one move", "1,000 moves"), lines)


def frequencies() -> str:
    """Return errors of frequencies that are given, at a million."""
    names = {
        "product": "float32 product of position and frequency",
        "float32": "`apply_frequencies`, float32",
        "float64": "`apply_frequencies`, float64",
    }
    lines = [(text, error(rows("frequencies")[key]["error"])) for key, text in names.items()]
    return markdown(("", "error of cos and sin, at position 10**6"), lines)


def devices() -> str:
    """Return what each device holds of 10,485,760 tokens."""
    lines = []
    for count, held in rows("devices").items():
        sizes = (f"{held[key]:.0f} MiB" for key in ("q and k", "extra"))
        lines.append((count, str(10 * 2**20 // int(count)), *sizes, f"{held['collectives']:.0f}"))
    heads = ("devices", "tokens per device", "q and k per device", "extra memory, at most")
    return markdown((*heads, "collectives"), lines)


def peak() -> str:
    """Return the peak of a call."""
    found = rows("peak")
    return _table(
        "peak over the size of the results", found, {"rope_xp": "rope_xp", "formula": "formula"}
    )


TABLES: dict[str, Callable[[], str]] = {
    "README speed": readme,
    "README one token": readme_one_token,
    "accuracy": accuracy,
    "angles": angles,
    "chunks": chunks,
    "cliffs": cliffs,
    "dense form": dense_form,
    "devices": devices,
    "drift": lambda: _errors("", "drift"),
    "engines": engines,
    "frequencies": frequencies,
    "given memory": given_memory,
    "in graphs": in_graphs,
    "layers": layers,
    "limits": limits,
    "machine": lambda: describe("prefill_torch"),
    "mlx": mlx,
    "moves": moves,
    "new memory": new_memory,
    "noise": noise,
    "norm": norm,
    "one token": one_token,
    "packages": lambda: _errors("largest error of cos and sin, positions up to", "packages"),
    "peak": peak,
    "rivals": rivals,
    "scores of Llama 3": lambda: _errors("Llama 3, base 5e5", "scores", "Llama 3: "),
    "scores of Qwen2.5-1M": lambda: _errors("Qwen2.5-1M, base 1e7", "scores", "Qwen2.5-1M: "),
    "speed": speed,
    "streaming": streaming,
    "threads": threads,
    "training": training,
}
