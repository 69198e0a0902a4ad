"""Write what ``inspect`` prints of real models to reports/. Run it to make the files anew.

``configs/`` has the keys of their public config.json files that are about positions, layers and
heads; names and values are theirs.
"""

import contextlib
import io
from pathlib import Path

from rope_xp.__main__ import main

HERE = Path(__file__).parent


def reports():
    for path in sorted((HERE / "configs").glob("*.json")):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["inspect", str(path)])
        yield path.stem, printed.getvalue()


if __name__ == "__main__":
    for name, text in reports():
        (HERE / "reports" / f"{name}.txt").write_text(text, encoding="utf-8")
