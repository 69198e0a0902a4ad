"""Formulae as MathML, which browsers show without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line; its node has no children to go through."""
    from docutils.nodes import SkipNode

    writer.body.append(convert(node.astext()))
    raise SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write formulae of their own lines; those with a wide space between go below each other."""
    from docutils.nodes import SkipNode

    formulae = [convert(part, display="block") for part in node.astext().split(r"\qquad")]
    writer.body.append(f'<div class="math">{"".join(formulae)}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer this way to write formulae; conf.py chooses it."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
