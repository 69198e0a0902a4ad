"""Kinds of argument that the commands share, checked as argparse reads them."""

import argparse
import math


def count(text: str) -> int:
    """Return a number of things, at least 1."""
    value = int(text)
    if value < 1:
        msg = f"must be at least 1, got {value}"
        raise argparse.ArgumentTypeError(msg)
    return value


def positive(text: str) -> float:
    """Return a positive finite number."""
    value = float(text)
    if not 0 < value < math.inf:
        msg = f"must be positive and finite, got {text}"
        raise argparse.ArgumentTypeError(msg)
    return value
