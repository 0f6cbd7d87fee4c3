"""Take the results of a sweep into the repository: `python scripts/take_results.py runs/reproduce-mini`.

Its JSON files go to results/SCALE, those of its cells to results/SCALE/cells, and its figures to docs/images, without
the runs; docs/results.md is made from them.
"""

import shutil
import sys
from pathlib import Path

from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.reproduce.embed import refreshed
from msvq.reproduce.records import FOLDER
from msvq.reproduce.sweep import MANIFEST, RESULTS, read_manifest


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
    for file in sorted((sweep / RESULTS / FOLDER).glob("*.json")):
        place = places[".json"] / FOLDER / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        written.append(Path(shutil.copyfile(file, place)))
    page = root / "docs" / "results.md"
    if page.is_file():
        write_text(page, refreshed(page))
        written.append(page)
    return written


if __name__ == "__main__":
    try:
        for path in take(Path(sys.argv[1]), Path(__file__).parents[1]):
            sys.stdout.write(f"{path}\n")
    except (BadInput, IndexError) as error:
        sys.exit(str(error) if isinstance(error, BadInput) else __doc__)
