"""Find what built pages would fetch from a network. Usage: check_html.py FOLDER."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

AFAR = re.compile(r"\s*(?:https?:|wss?:|ftp:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)
FETCHED = {"src", "srcset", "poster", "data", "href", "xlink:href"}
# What a browser fetches when it is followed, or not at all.
NOT_FETCHED = {"a", "area", "base"}
ONLY_NAMED = {"alternate", "author", "canonical", "help", "index", "license"}
ONLY_NAMED |= {"next", "prev", "search"}


class FetchedAddresses(HTMLParser):
    """Collects what a page, or a picture in SVG, has a browser fetch from elsewhere."""

    def __init__(self):
        super().__init__()
        self.addresses = []
        self._open_styles = 0

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        relations = set(values.get("rel", "").lower().split())
        is_fetched = tag not in NOT_FETCHED and not (tag == "link" and relations <= ONLY_NAMED)
        for name in FETCHED & set(values) if is_fetched else ():
            parts = values[name].split(",") if name == "srcset" else [values[name]]
            self.addresses += [part.strip() for part in parts if AFAR.match(part)]
        self.addresses += IN_STYLE.findall(values.get("style", ""))
        self._open_styles += tag == "style"

    def handle_endtag(self, tag):
        self._open_styles -= tag == "style"

    def handle_data(self, data):
        if self._open_styles:
            self.addresses += IN_STYLE.findall(data)


def find_addresses(path):
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return IN_STYLE.findall(text)
    page = FetchedAddresses()
    page.feed(text)
    return page.addresses


def main(folder):
    paths = [p for p in sorted(Path(folder).rglob("*")) if p.suffix in {".html", ".css", ".svg"}]
    fetched = [(path, address) for path in paths for address in find_addresses(path)]
    for path, address in fetched:
        print(f"{path.relative_to(folder)} fetches {address}")
    pages = sum(path.suffix == ".html" for path in paths)
    print(f"{pages} pages and {len(paths) - pages} files beside them")
    return int(not pages or bool(fetched))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
