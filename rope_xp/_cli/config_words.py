"""Print the report of ``python -m rope_xp inspect`` in words."""

from collections.abc import Iterator
from typing import Any

from rope_xp._cli import terminal

_COLUMNS = ("layers", "length", "fastest", "slowest", "original", "extended")
_LEGEND = (
    ("length", "tokens of the context, if frequencies depend on it"),
    ("fastest", "tokens in which the fastest pair makes one turn"),
    ("slowest", "the same of the slowest pair"),
    ("original", "pairs that make less than one turn in the original context"),
    ("extended", "pairs that do in the extended context"),
)
_ELSEWHERE = ("layer_type", "count", "rotated", "wavelengths", "python")


def print_report(report: dict[str, Any]) -> None:
    """Print a report in words: the facts under the names that they have in JSON."""
    sizes = ", ".join(f"{key} = {size}" for key, size in report["by_default"].items())
    exempt = report["layers_without_rotation"]
    numbers = f"{len(exempt)} layers: {', '.join(map(str, exempt))}"
    facts = [
        ("model type", f"{report['model_type']}{'' if report['checked'] else ' (not checked)'}"),
        ("part", report["part"]),
        ("by default", sizes and f"{sizes} (not in the file)"),
        ("not rotated", exempt and numbers),
    ]
    print(terminal.plain_pairs([(name, text) for name, text in facts if text]))
    rows = []
    for layers in report["layers"]:
        name, count = layers["layer_type"] or "all layers", layers["count"]
        number = "" if count is None else f" ({count})"
        print(f"\n{name}{number}{'' if layers['rotated'] else ': no positions'}")
        if layers["rotated"]:
            print(terminal.plain_pairs(list(_list_facts(layers))))
        rows += [(name, *_format_waves(waves, layers["pairs"])) for waves in layers["wavelengths"]]
    if rows:
        print()
        terminal.table(_COLUMNS, rows, text_columns=1)
        print(f"\n{terminal.plain_pairs(_LEGEND)}")
    if report["notes"]:
        terminal.print_list("notes", report["notes"])
    if report["suspicious"]:
        terminal.print_list("suspicious", report["suspicious"])
    else:
        print("\nsuspicious: nothing")
    texts = [layers["python"] for layers in report["layers"] if layers["python"]]
    if texts:
        print("\nin Python:\n\nimport rope_xp\n")
        print("\n".join(texts))


def _list_facts(layers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is known of layers, but for what the title and the table have."""
    for key, value in layers.items():
        if key not in _ELSEWHERE and value is not None and value is not False:
            yield f"  {key.replace('_', ' ')}", _format_value(value)


def _format_value(value: Any) -> str:
    if isinstance(value, dict):  # a scaling
        fields = {name: field for name, field in value["fields"].items() if field is not None}
        texts = [f"{name}={_format_field(field)}" for name, field in fields.items()]
        return f"{value['name']}({', '.join(texts)})"
    if value is True:
        return "yes"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _format_field(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({len(value)} numbers from {min(value):g} to {max(value):g})"
    return repr(value)


def _format_waves(waves: dict[str, Any], pairs: int | None) -> tuple[str, ...]:
    fastest, slowest = waves["fastest"], waves["slowest"]
    counts = (waves["below_one_turn_in_original"], waves["below_one_turn_in_extended"])
    return (
        str(waves["length"] or "any"),
        _format_tokens(fastest),
        "never turns" if waves["standing_pairs"] else _format_tokens(slowest),
        *("unknown" if count is None else f"{count} of {pairs}" for count in counts),
    )


def _format_tokens(tokens: float | None) -> str:
    return "unknown" if tokens is None else f"{tokens:.{2 if tokens < 100 else 0}f}"
