"""Open built pages in Chromium, and find what cannot be read or would need a network.

    python docs/tools/open_pages.py FOLDER [--pictures FOLDER]

Each page is opened on a wide and on a narrow screen, in light and dark. The exit status is 1 if a
page is wider than the screen, if code, a table, a formula or a picture is cut off or sticks out of
its box, if a number in a table is broken over two lines, if a picture does not load, or if a page
logs an error or asks another host. On a narrow screen, wide content may scroll in its own box.
With --pictures each view is saved as a PNG. Needs PySide6, the extra ``browser``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

# No screen is needed, and no sandbox, which containers do not allow: the pages are our own.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PySide6.QtCore import QEventLoop, QTimer, QUrl
from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineSettings
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

if sys.version_info < (3, 12):  # PySide6 6.12 drops references to None, which is immortal from 3.12
    for _ in range(1_000_000):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(None))

WIDTHS = (1280, 390)
THEMES = ("light", "dark")
SCREEN = 900
HIGHEST = 16000
"""Pixels of the highest picture that Chromium draws."""

CHECK = """
(() => {
  const wide = innerWidth > 1000, found = [];
  const name = e => e.tagName.toLowerCase() + (e.id ? '#' + e.id : '') + ': ' +
    (e.alt || e.innerText || e.textContent || '').trim().replace(/\\s+/g, ' ').slice(0, 60);
  const style = e => getComputedStyle(e);
  const scrolls = e => ['auto', 'scroll'].includes(style(e).overflowX);
  // Chromium fetches nothing from elsewhere for a local page, and lists what was asked.
  for (const asked of performance.getEntriesByType('resource'))
    if (!asked.name.startsWith('file:')) found.push(`asks ${asked.name}`);
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth)
    found.push(`the page is ${root.scrollWidth} px wide on a screen of ${innerWidth}`);
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.closest('.sidebar-drawer, .toc-drawer')) continue;
    const more = e.scrollWidth - e.clientWidth, below = e.scrollHeight - e.clientHeight;
    const ownBox = scrolls(e) && !wide && !e.querySelector('h1, h2, h3');
    if (e.clientWidth > 1 && more > 1 && style(e).overflowX != 'visible' && !ownBox)
      found.push(`${more} px are cut off: ${name(e)}`);
    if (e.clientHeight > 1 && below > 1 && ['hidden', 'clip'].includes(style(e).overflowY))
      found.push(`${below} px are cut off below: ${name(e)}`);
    if (e.tagName == 'IMG' && !e.naturalWidth) found.push(`not loaded: ${e.src}`);
    if (!e.matches('pre, table, img, svg, math')) continue;
    const {left, right} = e.getBoundingClientRect();
    for (let p = e; p != root && (wide || !scrolls(p)); p = p.parentElement) {
      const box = p.getBoundingClientRect();
      const over = Math.max(Math.max(right, left + e.scrollWidth) - box.right, box.left - left);
      if (!p.clientWidth || over < 2) continue;
      found.push(`${Math.round(over)} px stick out of ${p.tagName}.${p.className}: ${name(e)}`);
      break;
    }
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (wide && walker.nextNode()) {
    const text = walker.currentNode;
    if (!text.parentElement.closest('td, th')) continue;
    for (const number of text.data.matchAll(/[-+]?\\d[\\d.,e\\u2060+-]*/g)) {
      const range = document.createRange();
      range.setStart(text, number.index);
      range.setEnd(text, number.index + number[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1)
        found.push(`a number over two lines: ${number[0]} in ${name(text.parentElement)}`);
    }
  }
  return found;
})()
"""


class Page(QWebEnginePage):
    """A page that notes its errors."""

    problems: list[str]

    def javaScriptConsoleMessage(  # noqa: N802  # Qt's name
        self, level: Any, message: str, line: int, source: str
    ) -> None:
        if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
            self.problems.append(f"script error in line {line} of {source}: {message}")


def pause(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def evaluate(page: QWebEnginePage, script: str) -> Any:
    """Return the value of an expression on the page."""
    loop, values = QEventLoop(), []
    page.runJavaScript(
        f"JSON.stringify({script})", lambda value: (values.append(value), loop.quit())
    )
    loop.exec()
    return json.loads(values[0])


def load(page: QWebEnginePage, path: Path) -> None:
    loop = QEventLoop()
    page.loadFinished.connect(loop.quit)
    page.load(QUrl.fromLocalFile(str(path.resolve())))
    loop.exec()


def resize(view: QWebEngineView, width: int, height: int) -> None:
    """Resize the screen, and return once the page knows."""
    view.resize(width, height)
    while evaluate(view.page(), "[innerWidth, innerHeight]") != [width, height]:
        pause(10)


def check(view: QWebEngineView, path: Path, folder: Path, pictures: Path | None) -> list[str]:
    """Return what is wrong with a page in all its views."""
    page, problems = view.page(), []
    page.problems = problems
    load(page, path)
    for width in WIDTHS:
        resize(view, width, SCREEN)
        for theme in THEMES:
            # The theme that a reader chooses: in furo an attribute, elsewhere the property.
            styles = "document.body.dataset.theme = document.documentElement.style.colorScheme"
            evaluate(page, f"{styles} = '{theme}'")
            problems += [f"at {width} px: {found}" for found in evaluate(page, CHECK)]
            if pictures:
                height = evaluate(page, "document.documentElement.scrollHeight")
                resize(view, width, min(height, HIGHEST))
                pause(200 + height // 8)  # until it is drawn
                name = path.relative_to(folder).with_suffix("").as_posix().replace("/", ".")
                view.grab().save(str(pictures / f"{name}-{width}-{theme}.png"))
                resize(view, width, SCREEN)
    return list(dict.fromkeys(problems))


def main(folder: Path, pictures: Path | None) -> int:
    _app = QApplication([])
    view = QWebEngineView()
    page = Page(view)
    # As on a phone, bars take no room.
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)
    view.setPage(page)
    view.show()
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    paths = sorted(folder.rglob("*.html"))
    wrong = 0
    for path in paths:
        for problem in check(view, path, folder, pictures):
            wrong += 1
            print(f"{path.relative_to(folder)}: {problem}", flush=True)
    print(f"{len(paths)} pages, {wrong} problems")
    return int(not paths or bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    sys.exit(main(options.folder, options.pictures))
