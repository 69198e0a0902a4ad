"""The report of ``python -m rope_xp inspect`` in words."""

from collections.abc import Iterator
from typing import Any

from rope_xp._cli import terminal

_COMPONENTS = {2: ("row", "column"), 3: ("time", "height", "width")}


_COLUMNS = ("layers", "length", "fastest", "slowest", "original", "extended")
_LEGEND = (
    ("length", "tokens of the context, if frequencies depend on it"),
    ("fastest", "tokens in which the fastest pair makes one turn"),
    ("slowest", "the same of the slowest pair"),
    ("original", "pairs that make less than one turn in the original context"),
    ("extended", "pairs that do in the extended context"),
)


def show(report: dict[str, Any]) -> None:
    """Print a report in words."""
    print(terminal.plain_pairs(list(_describe_model(report))))
    for layers in report["layers"]:
        print(f"\n{_layers_title(layers, report['layers_without_rotation'])}")
        if layers["rotated"]:
            lines = [(f"  {name}", text) for name, text in _describe_layers(layers)]
            print(terminal.plain_pairs(lines))
    alone = "rotated layers" if report["layers_without_rotation"] else "all layers"
    rows = [
        (layers["layer_type"] or alone, *_wavelength_row(layers, one))
        for layers in report["layers"]
        for one in layers["wavelengths"]
    ]
    if rows:
        print()
        terminal.table(_COLUMNS, rows, text_columns=1)
        print(f"\n{terminal.plain_pairs(_LEGEND)}")
    for kind in ("notes", "suspicious"):
        if report[kind]:
            print(f"\n{kind}:")
        elif kind == "suspicious":
            print("\nsuspicious: nothing")
        for sentence in report[kind]:
            print(terminal.folded("- ", sentence, 2))
    texts = [layers["python"] for layers in report["layers"] if layers["python"]]
    if texts:
        print("\nin Python:\n\nimport rope_xp\n")
        print("\n".join(texts))


def _describe_model(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model type", f"{report['model_type']}{'' if report['checked'] else ' (not checked)'}"
    if report["part"]:
        yield "part", report["part"]
    if report["by_default"]:
        filled = ", ".join(f"{key} = {size}" for key, size in report["by_default"].items())
        yield "by default", f"{filled} (not in the file)"
    exempt = report["layers_without_rotation"]
    if exempt:
        yield "not rotated", f"{len(exempt)} layers: {', '.join(map(str, exempt))}"


def _layers_title(layers: dict[str, Any], exempt: list[int]) -> str:
    name, count = layers["layer_type"], layers["count"]
    if not layers["rotated"]:
        name = f"{name}: no positions"
    if name is None and exempt and count:
        return f"{count - len(exempt)} of {count} layers"
    return f"{name or 'all layers'}{'' if count is None else f' ({count})'}"


def _describe_layers(layers: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("rule", _format_rule(layers["rule"])),
        ("base", f"{layers['base']:.10g}{' (by default)' if layers['base_by_default'] else ''}"),
        ("layout", layers["layout"]),
        ("rotated", _format_slice(layers)),
        ("position", _format_position(layers["pairs_per_component"])),
        ("context", _format_context(layers["original_context"], layers["extended_context"])),
        ("attention factor", f"{layers['attention_factor']:.6g}"),
        ("softmax scale", f"{layers['softmax_scale']:.6g}"),
    ]


def _format_rule(rule: dict[str, Any] | None) -> str:
    if rule is None:
        return "none"
    texts = []
    for name, value in rule["fields"].items():
        if isinstance(value, tuple):
            text = f"{len(value)} numbers from {min(value):g} to {max(value):g}"
            texts.append(f"{name}=({text})")
        elif value is not None:
            texts.append(f"{name}={value!r}")
    return f"{rule['name']}({', '.join(texts)})"


def _format_slice(layers: dict[str, Any]) -> str:
    rotated, head, offset = (layers[key] for key in ("rotary_dim", "head_dim", "rotary_offset"))
    if rotated is None:
        return "all components of a head of unknown size"
    of = f"{rotated} of {head or 'unknown'} components"
    where = "" if rotated == head else ", the first" if offset == 0 else ", the last"
    return f"{of}{where}; {layers['pairs']} pairs"


def _format_position(counts: list[int] | None) -> str:
    if counts is None:
        return "one number"
    names = _COMPONENTS.get(len(counts), tuple(f"component {i}" for i in range(len(counts))))
    each = ", ".join(f"{name} {n}" for name, n in zip(names, counts, strict=True))
    return f"{len(counts)} numbers; pairs that read each: {each}"


def _format_context(original: int | None, extended: int | None) -> str:
    if original is None:
        return "unknown" if extended is None else f"{extended} tokens; the original is not known"
    same = original == extended
    return (
        f"{original} tokens" if same else f"{original} tokens, extended to {extended or 'unknown'}"
    )


def _wavelength_row(layers: dict[str, Any], one: dict[str, Any]) -> tuple[str, ...]:
    slowest = "never turns" if one["standing_pairs"] else _format_tokens(one["slowest"])
    below = (one["below_one_turn_in_original"], one["below_one_turn_in_extended"])
    return (
        "any" if one["length"] is None else str(one["length"]),
        _format_tokens(one["fastest"]),
        slowest,
        *("unknown" if n is None else f"{n} of {layers['pairs']}" for n in below),
    )


def _format_tokens(tokens: float | None) -> str:
    return "unknown" if tokens is None else f"{tokens:.{2 if tokens < 100 else 0}f}"
