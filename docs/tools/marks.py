"""The marks in a page of what remake.py writes there."""

import re

MADE = re.compile(r"(<!-- made: (.+) -->\n)(?:.*\n)*?(<!-- end -->)")
FIGURE = re.compile(
    r"\d[\d.,]*(?:e-\d+)?(?: to [\d.,]+(?:e-\d+)?)?(?: (?:ms|us|MiB))?(<!-- from:\s+(.+?) -->)",
    re.DOTALL,
)
"""A figure or a range, its unit, and where they come from."""
