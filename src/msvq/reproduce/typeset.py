"""A study's JSON for other programs: LaTeX and CSV, made from the JSON alone."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from msvq.reproduce.formats import Result, also, heading, sections


def latex(result: Result) -> str:
    """The same tables for a paper; plain LaTeX, no packages."""
    parts = [f"% {heading(result)}", f"% {result['command']}"]
    for title, (header, rows) in sections(result):
        columns = "l" + "r" * (len(header) - 1)
        body = [" & ".join(_tex(text) for text in line) + r" \\" for line in rows]
        parts.append(
            "\n".join(
                [
                    f"% {title}",
                    rf"\begin{{tabular}}{{{columns}}}",
                    r"\hline",
                    " & ".join(_tex(text) for text in header) + r" \\",
                    r"\hline",
                    *body,
                    r"\hline",
                    r"\end{tabular}",
                ]
            )
        )
    return "\n\n".join(parts) + "\n"


_TEX = {"τ_t": r"$\tau_t$", "m_1": "$m_1$", "m_2": "$m_2$", "±": r"$\pm$"}
_ESCAPED = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}


def _tex(text: str) -> str:
    """Text as LaTeX wants it; a minus sign is one."""
    if text[:1] == "-" and text[1:2].isdigit():
        text = f"$-${text[1:]}"
    for index, plain in enumerate(_TEX):
        text = text.replace(plain, f"\0{index}\0")
    text = "".join(_ESCAPED.get(letter, letter) for letter in text)
    for index, written in enumerate(_TEX.values()):
        text = text.replace(f"\0{index}\0", written)
    return text


CSV_COLUMNS = (
    "study", "scale", "measure", "dataset", "row", "backprop", "published", "source",
    "best_mean", "best_std", "last_mean", "last_std", "difference", "seeds", "also_published",
)  # fmt: skip
CURVE_COLUMNS = ("study", "scale", "dataset", "series", "epoch", "mean", "std")


CLAIM_COLUMNS = (
    "study", "scale", "dataset", "claim", "published_difference", "difference", "std", "seeds", "p", "verdict",
)  # fmt: skip


def as_csv(result: Result) -> str:
    """A line for each number, unrounded: of a table's places by each measure, or of a figure's points."""
    if result["kind"] == "table":
        return _csv(CSV_COLUMNS, _table_lines(result))
    lines: list[Sequence[Any]] = []
    for panel in result.get("panels", ()):
        for name, points in panel["series"].items():
            start = (result["name"], result["scale"], panel["dataset"], name)
            lines += [(*start, point["epoch"], point["mean"], point["std"]) for point in points]
    return _csv(CURVE_COLUMNS, lines)


def claims_csv(result: Result) -> str:
    """A line for each claim; of costs and counts, the differences are ratios."""
    lines = []
    for claim in result["claims"]:
        published = claim["published_ratio"] if claim.get("ratios") else claim["published_difference"]
        found = {**claim, "study": result["name"], "scale": result["scale"], "published_difference": published}
        lines.append([found[column] for column in CLAIM_COLUMNS])
    return _csv(CLAIM_COLUMNS, lines)


def _csv(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return text.getvalue()


def _table_lines(result: Result) -> list[Sequence[Any]]:
    """Published numbers stand beside the table's own measure, and beside what the difference is taken on."""
    lines: list[Sequence[Any]] = []
    for row in result["rows"]:
        for dataset, cell in row["cells"].items():
            told, nothing = (cell["published"], cell["source"]), ((None, None), None)
            compared = "knn-all" if result["measure"] == "knn" and result["fewer_vote"] else result["measure"]
            differences = {result["measure"]: (told, None), compared: (told, cell["difference"])}
            if cell["linear_difference"] is not None:
                differences["linear"] = (told, cell["linear_difference"])
            values = {result["measure"]: cell | {"seeds": len(cell["values"])}}
            values |= {name: cell[name] for name in ("linear", "knn", "knn-all") if cell.get(name)}
            measures = {name: (value, *differences.get(name, nothing)) for name, value in values.items()}
            for name, (value, published, difference) in measures.items():
                best, last = value["best"] or {}, value["last"] or {}
                ours = (best.get("mean"), best.get("std"), last.get("mean"), last.get("std"), difference)
                start = (result["name"], result["scale"], name, dataset, row["row"], row["backprop"])
                others = also(cell) if name == result["measure"] else ""
                lines.append((*start, *published, *ours, value["seeds"], others))
    return lines
