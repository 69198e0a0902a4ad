"""Find what built pages would fetch from a network. Usage: check_html.py FOLDER."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

AFAR = re.compile(r"\s*(?:https?:|wss?:|ftp:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)
FETCHED = {"src", "srcset", "poster", "data", "href", "xlink:href"}
# What a browser fetches when it is followed, or not at all.
NOT_FETCHED = {"a", "area", "base"}
ONLY_TOLD = {"alternate", "author", "canonical", "help", "index", "license"}
ONLY_TOLD |= {"next", "prev", "search"}


class Fetched(HTMLParser):
    """Collects what a page, or a picture in SVG, has a browser fetch from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._styles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        relations = set(values.get("rel", "").lower().split())
        is_fetched = tag not in NOT_FETCHED and not (tag == "link" and relations <= ONLY_TOLD)
        for name in FETCHED & set(values) if is_fetched else ():
            parts = values[name].split(",") if name == "srcset" else [values[name]]
            self.found += [part.strip() for part in parts if AFAR.match(part)]
        self.found += in_style(values.get("style", ""))
        self._styles += tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._styles -= tag == "style"

    def handle_data(self, data: str) -> None:
        if self._styles:
            self.found += in_style(data)


def in_style(text: str) -> list[str]:
    """Return the addresses that a style sheet fetches."""
    return IN_STYLE.findall(text)


def fetched(path: Path) -> list[str]:
    """Return the addresses that a built file fetches."""
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return in_style(text)
    page = Fetched()
    page.feed(text)
    return page.found


def main(folder: str) -> int:
    paths = [p for p in sorted(Path(folder).rglob("*")) if p.suffix in {".html", ".css", ".svg"}]
    found = {path: fetched(path) for path in paths}
    for path, addresses in found.items():
        for address in addresses:
            print(f"{path.relative_to(folder)} fetches {address}")
    pages = sum(path.suffix == ".html" for path in paths)
    print(f"{pages} pages and {len(paths) - pages} files beside them")
    return int(not pages or any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
