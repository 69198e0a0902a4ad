"""What a page in Markdown links to, as a forge reads it: without what Sphinx would make of it."""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^( *)(`{3,})(.*)\n(?:.*\n)*?\1\2 *$", re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*)\)")
ROLE = re.compile(r"\{[a-z][\w:.-]*\}`")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


class Link(NamedTuple):
    """A link or a picture."""

    words: str
    target: str


def directives(text: str) -> list[str]:
    """Return the names of what only Sphinx can show."""
    languages = (fence[3].strip() for fence in FENCE.finditer(text))
    return [words.partition("}")[0][1:] for words in languages if words.startswith("{")]


def roles(text: str) -> list[str]:
    """Return what looks like a role of MyST; one that is quoted as code within code is none."""
    plain = re.sub(r"(`{2,})(?!`).+?(?<!`)\1(?!`)", "", FENCE.sub("", text), flags=re.DOTALL)
    return ROLE.findall(plain)


def links(text: str) -> list[Link]:
    """Return the links and pictures of a page. Words that are code count as words."""
    plain = CODE.sub(lambda code: "x" * len(code[0]), FENCE.sub("", text))
    return [Link(m[1].strip(), m[2]) for m in LINK.finditer(plain)]


def anchors(text: str) -> set[str]:
    """Return what forges call the headings of a page."""
    names: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        names[re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")] += 1
    return {f"{name}-{i}" if i else name for name, count in names.items() for i in range(count)}


def problem(link: Link, page: Path, text: str) -> str | None:
    """Return why a link leads nowhere or cannot be seen, or None. Addresses are not followed."""
    if not link.words or not link.target:
        return "no words" if link.target else "no target"
    if re.match(r"https?://|mailto:", link.target):
        return None
    name, _, anchor = link.target.partition("#")
    target = (page.parent / name).resolve() if name else page
    if "_generated" in target.parts or "_build" in target.parts:
        return "a file that is not kept"
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md":
        read = target.read_text("utf-8") if name else text
        return None if anchor in anchors(read) else "no such heading"
    return None


def bold_powers(text: str) -> list[str]:
    """Return paragraphs and cells with two powers in plain words, which would become bold type."""
    plain = CODE.sub("", FENCE.sub("", text))
    parts = re.split(r"\n\s*(?:\n|[-*+] |\d+\. )|(?<!\\)\|", plain)
    return [part.strip() for part in parts if len(re.findall(r"\d\*\*\d", part)) > 1]
