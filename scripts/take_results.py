"""Take the results of a sweep into the repository: `python scripts/take_results.py runs/reproduce-mini`.

Its JSON files go to results/SCALE, those of its cells to results/SCALE/cells, and its figures to docs/images, without
the runs; docs/results.md is made from them.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.reproduce.experiments import CELLS
from msvq.reproduce.formats import markdown
from msvq.reproduce.sweep import MANIFEST, RESULTS, read_manifest

_BLOCK = re.compile(
    r"(?P<start><!-- result: (?P<file>[^,>]+?)(?:, figure: (?P<figure>[^>]+?))? -->\n)"
    r"(?:(?!<!--).)*?(?P<end><!-- end of result -->)",
    re.DOTALL,
)
_MARKS = re.compile(r"<!--\s*(?:result\b|end of result)", re.IGNORECASE)  # also those that are written a little wrong


def refresh_page(page: Path) -> str:
    """A page's text with every marked block made anew from its JSON file, so that no number in it is typed.

    A block is between the lines `<!-- result: FILE -->` and `<!-- end of result -->`, with FILE relative to the page;
    `<!-- result: FILE, figure: PICTURE -->` shows a picture above the numbers.
    """

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
        wanted = "<!-- result: ../results/mini/knn.json -->"
        raise BadInput(f"{page} has a mark of a result that is not one of a pair: {wanted} ...")
    return _BLOCK.sub(block, text)


def num_blocks(text: str) -> int:
    """How many results a page's text shows."""
    return len(_BLOCK.findall(text))


def take(sweep: Path, root: Path) -> list[Path]:
    """Copy what a sweep has come to, and make the page anew. Returns the files that were written."""
    if not (sweep / MANIFEST).is_file() or not (sweep / RESULTS).is_dir():
        raise BadInput(
            f"{str(sweep)!r} is no sweep with results: name the --out of an msvq reproduce that has finished"
        )
    scale = read_manifest(sweep)["scale"]
    places = {".json": root / "results" / scale, ".svg": root / "docs" / "images"}
    written = []
    for file in sorted((sweep / RESULTS).iterdir()):
        if file.suffix in places:
            name = file.name if file.suffix == ".json" else f"{scale}-{file.name}"
            place = places[file.suffix] / name
            place.parent.mkdir(parents=True, exist_ok=True)
            written.append(Path(shutil.copyfile(file, place)))
    for file in sorted((sweep / RESULTS / CELLS).glob("*.json")):
        place = places[".json"] / CELLS / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        written.append(Path(shutil.copyfile(file, place)))
    page = root / "docs" / "results.md"
    if page.is_file():
        write_text(page, refresh_page(page))
        written.append(page)
    return written


if __name__ == "__main__":
    try:
        for path in take(Path(sys.argv[1]), Path(__file__).parents[1]):
            sys.stdout.write(f"{path}\n")
    except (BadInput, IndexError) as error:
        sys.exit(str(error) if isinstance(error, BadInput) else __doc__)
