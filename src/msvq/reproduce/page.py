"""The files that a sweep leaves beside its runs: a study in every form, and one page about all studies so far."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.report.page import resource, templates
from msvq.reproduce.cells import find_scale
from msvq.reproduce.formats import ALSO, crossing_sentences, heading, markdown, notes, sections
from msvq.reproduce.studies import STUDIES
from msvq.reproduce.sweep import CELLS, RESULTS, read_manifest
from msvq.reproduce.typeset import as_csv, claims_csv, latex

PAGE = "report.html"


def write_study(out: Path, result: Mapping[str, Any], figures: list[Path]) -> list[Path]:
    """Write a result as JSON, Markdown, LaTeX and CSV. Returns the files, the Markdown first."""
    name, folder = result["name"], out / RESULTS
    picture = next((file.name for file in figures if file.suffix == ".svg"), None)
    files = {
        folder / f"{name}.md": markdown(result, figure=picture),
        folder / f"{name}.json": json.dumps(result, indent=1) + "\n",
        folder / f"{name}.tex": latex(result),
        folder / f"{name}.csv": as_csv(result),
    }
    if result["claims"]:
        files[folder / f"{name}-claims.csv"] = claims_csv(result)
    for path, text in files.items():
        write_text(path, text)
    return [*files, *figures]


def write_page(out: Path) -> Path:
    """The page about everything that was reproduced in this directory so far."""
    manifest = read_manifest(out)
    found = {path.stem: path for path in (out / RESULTS).glob("*.json")}
    studies, unreadable = [], []
    for name in STUDIES:
        if name in found:
            try:
                studies.append(_study(json.loads(found[name].read_text(encoding="utf-8")), out))
            except (ValueError, KeyError, TypeError, AttributeError):  # the numbers of others are worth a page
                unreadable.append(f"{RESULTS}/{name}.json")
    cells = [
        {
            "name": name,
            "link": f"{CELLS}/{name}/report.html",
            "hours": f"{facts['seconds'] / 3600:.2f}" if facts.get("seconds") else "",
            "failed": facts.get("failed", ""),
        }
        for name, facts in sorted(manifest["cells"].items())
    ]
    scale = manifest["scale"]
    text = (
        templates()
        .get_template("reproduction.html")
        .render(
            title=f"Reproduction of MSVQ, scale {scale}",
            scale=scale,
            note=_note(scale),
            studies=studies,
            wordy=(ALSO, "verdict"),  # columns of words, which wrap
            unreadable=unreadable,
            cells=cells,
            style=resource("page.css"),
        )
    )
    write_text(out / PAGE, text)
    return out / PAGE


def _note(scale: str) -> str:
    """What a scale is, in a sentence; nothing of one that another version made."""
    try:
        text = find_scale(scale).note
    except BadInput:
        return ""
    return text[0].upper() + text[1:]


def _study(result: Mapping[str, Any], out: Path) -> dict[str, Any]:
    picture = out / RESULTS / f"{result['name']}.png"
    shown = base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else ""
    return {
        "name": result["name"],
        "heading": heading(result),
        "figure": f"data:image/png;base64,{shown}" if shown else "",
        "sections": sections(result),
        "crossings": crossing_sentences(result),
        "notes": notes(result),
        "command": result["command"],
    }
