"""Tables within a page of text, made from JSON files, so that no number in it is typed.

    <!-- result: ../results/mini/knn.json -->
    ... replaced ...
    <!-- end of result -->

The path is relative to the page. `<!-- result: FILE, figure: PICTURE -->` shows a picture above the numbers.
"""

import json
import re
from pathlib import Path

from msvq.core.errors import BadInput
from msvq.reproduce.formats import markdown

_BLOCK = re.compile(
    r"(?P<start><!-- result: (?P<file>[^,>]+?)(?:, figure: (?P<figure>[^>]+?))? -->\n)"
    r"(?:(?!<!--).)*?(?P<end><!-- end of result -->)",
    re.DOTALL,
)
_MARKS = re.compile(r"<!--\s*(?:result\b|end of result)", re.IGNORECASE)  # also those that are written a little wrong


def refreshed(page: Path) -> str:
    """The page's text with every marked block made anew from its file."""

    def block(found: re.Match[str]) -> str:
        file = page.parent / found["file"]
        if not file.is_file():
            raise BadInput(f"{page} shows {found['file']}, which is not there")
        try:
            result = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise BadInput(f"{file} is damaged; copy it again from the sweep's results") from None
        return f"{found['start']}{markdown(result, figure=found['figure'])}{found['end']}"

    text = page.read_text(encoding="utf-8")
    if len(_MARKS.findall(text)) != 2 * num_blocks(text):
        raise BadInput(
            f"{page} has a mark of a result that is not one of a pair: {__doc__.splitlines()[2].strip()} ..."
        )
    return _BLOCK.sub(block, text)


def num_blocks(text: str) -> int:
    """How many results a page's text shows."""
    return len(_BLOCK.findall(text))
