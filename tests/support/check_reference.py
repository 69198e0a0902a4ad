"""Find what the built reference lacks. Usage: check_reference.py PAGE.md PAGE.html.

Sphinx leaves out what it cannot import; where torch is mocked, that may be any part of the layers
and integrations.
"""

import re
import sys
from pathlib import Path

DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>currentmodule|automodule|autofunction|autoclass|autoexception):: (?P<name>\S+)"
    r"(?P<options>(?:\n   .*)*)",
    re.MULTILINE,
)
MEMBERS = re.compile(r":members: (.+)")


def list_names(source: str) -> list[str]:
    """Return the full names of what the directives of a page document."""
    module, names = "", []
    for directive in DIRECTIVE.finditer(source):
        kind, name, options = directive.group("kind", "name", "options")
        if kind in {"currentmodule", "automodule"}:
            module = name
            continue
        names.append(f"{module}.{name}")
        members = MEMBERS.search(options)
        names += [f"{module}.{name}.{m.strip()}" for m in members[1].split(",")] if members else []
    return names


def main(source: str, html: str) -> int:
    names, page = list_names(Path(source).read_text("utf-8")), Path(html).read_text("utf-8")
    absent = [name for name in names if f'id="{name}"' not in page]
    for name in absent:
        print(f"{html} lacks {name}")
    print(f"{len(names) - len(absent)} of {len(names)} names have an entry in {html}")
    return int(not names or bool(absent))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
