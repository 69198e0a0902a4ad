"""Tell which libraries have a backend of their own, from the table that dispatch reads."""

from __future__ import annotations

from rope_xp._dispatch.libraries import LIBRARIES


def table() -> str:
    """Return the libraries, a row each, in Markdown."""
    lines = ["| library | recognised by | paths, fastest first | install |", "|---|---|---|---|"]
    for library in LIBRARIES:
        paths = ", ".join(f"`{path}`" for path in (*library.paths, "portable"))
        extra = f"`rope-xp[{library.extra}]`" if library.extra else "required"
        array = ", ".join(f"`{library.name}.{name}`" for name, _ in library.arrays)
        lines.append(f"| {library.name} | {array} | {paths} | {extra} |")
    lines.append(
        "| any other of the standard | `__array_namespace__` | `portable` | nothing more |"
    )
    return "\n".join(lines) + "\n"
