"""Write angles.json: cos and sin by mpmath with fifty digits. Run it to make the file anew."""

import json
from pathlib import Path

import mpmath

BASE, ROTARY_DIM = 10000.0, 96
PAIRS = [0, 1, 2, 7, 23, 47]
POSITIONS = [
    *(0, 1, -1, 2, 2047, 2048, 2049, -2048, 4095, 65_536, 70_000, 131_071),
    *((1 << 20) - 1, 1 << 20, 1_000_000, 10_000_000, (1 << 22) - 1, 1 << 22, -(1 << 22)),
    *((1 << 24) - 1, (1 << 24) + 1, 123_456_789, 1 << 30, (1 << 31) - 1, 1 - (1 << 31)),
]


def main() -> None:
    rows = []
    with mpmath.workdps(50):
        for position in POSITIONS:
            for pair in PAIRS:
                angle = position * mpmath.mpf(BASE) ** (-mpmath.mpf(2 * pair) / ROTARY_DIM)
                cos, sin = float(mpmath.cos(angle)), float(mpmath.sin(angle))
                rows.append([position, pair, cos, sin])
    content = {"base": BASE, "rotary_dim": ROTARY_DIM, "rows": rows}
    text = json.dumps(content).replace("[[", "[\n[").replace("], [", "],\n[") + "\n"
    Path(__file__).with_name("angles.json").write_text(text)


if __name__ == "__main__":
    main()
