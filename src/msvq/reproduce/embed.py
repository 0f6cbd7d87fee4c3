"""Tables within a page of text, made from JSON files, so that no number in it is typed.

    <!-- result: ../results/mini/knn.json -->
    ... replaced ...
    <!-- end of result -->

The path is relative to the page. `<!-- result: FILE, figure: PICTURE -->` shows a picture above the numbers.
"""

import json
import re
from pathlib import Path

from msvq.errors import BadInput
from msvq.reproduce.formats import markdown

_BLOCK = re.compile(
    r"(?P<start><!-- result: (?P<file>[^,>]+?)(?:, figure: (?P<figure>[^>]+?))? -->\n)"
    r".*?(?P<end><!-- end of result -->)",
    re.DOTALL,
)


def refreshed(page: Path) -> str:
    """The page's text with every marked block made anew from its file."""

    def block(found: re.Match[str]) -> str:
        file = page.parent / found["file"]
        if not file.is_file():
            raise BadInput(f"{page} shows {found['file']}, which is not there")
        result = json.loads(file.read_text(encoding="utf-8"))
        return f"{found['start']}{markdown(result, figure=found['figure'])}{found['end']}"

    return _BLOCK.sub(block, page.read_text(encoding="utf-8"))


def num_blocks(page: Path) -> int:
    """How many results a page shows."""
    return len(_BLOCK.findall(page.read_text(encoding="utf-8")))
