"""A study's JSON in every other form: tables and sentences, as Markdown, LaTeX and CSV; figures, files and a page."""

import base64
import csv
import io
import json
import operator
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msvq.core.console import counted, duration
from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.report.figures import COLOURS, draw_line, draw_maps, save_figure
from msvq.report.records import read_record
from msvq.report.templates import resource, templates
from msvq.reproduce.experiments import STUDIES, find_scale
from msvq.reproduce.paper import SOURCES, TITLES
from msvq.reproduce.sweep import RESULTS, read_manifest
from msvq.reproduce.tables import MEASURES, UNMEASURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
Y_LABELS = {"curves": "kNN accuracy (%)", "false-negatives": "false negatives found per picture"}
DASH = "-"
CLAIMS, OTHERS = "Claims", "also published"  # a section, and a column
Result = Mapping[str, Any]
Grid = tuple[list[str], list[list[str]]]  # header and rows


def number(value: float | None, *, sign: bool = False) -> str:
    """An accuracy with two digits, a dash where there is none."""
    return DASH if value is None else f"{value:+.2f}" if sign else f"{value:.2f}"


def spread(summary: Mapping[str, Any] | None) -> str:
    """Mean ± deviation."""
    return DASH if summary is None else number(summary["mean"]) + _deviation(summary["std"])


def table_grid(result: Result, dataset: str) -> Grid:
    """A table's rows on one data set."""
    main = result["name"] in ("linear", "knn")
    here = [(row, row["cells"][dataset]) for row in result["rows"] if row["cells"][dataset]["is_there"]]
    cells = [cell for _, cell in here]
    columns: dict[str, list[str]] = {result["first_column"]: [row["label"] for row, _ in here]}
    if main:
        columns["BackProp"] = [row["backprop"] or DASH for row, _ in here]
    columns["published"] = [number(cell["published"]) for cell in cells]
    if result["measure"] == "probe":
        columns["probe"] = [spread(cell["last"]) for cell in cells]
        if any(cell["linear"] for cell in cells):
            columns |= _two_epochs(cells, "linear")
            columns["difference"] = [number(cell["linear_difference"], sign=True) for cell in cells]
        columns |= _two_epochs(cells, "knn")
    else:
        columns["best epoch"] = [spread(cell["best"]) for cell in cells]
        columns["last epoch"] = [spread(cell["last"]) for cell in cells]
        if result["measure"] == "knn" and result["fewer_vote"]:
            columns["last epoch, all labels"] = [spread((cell["knn-all"] or UNMEASURED)["last"]) for cell in cells]
        columns["difference"] = [number(cell["difference"], sign=True) for cell in cells]
        if any(cell.get("probe") for cell in cells):
            columns["probe"] = [spread((cell["probe"] or UNMEASURED)["last"]) for cell in cells]
    columns["seeds"] = [str(len(cell["values"]) or DASH) for cell in cells]
    if any(cell["others"] for cell in cells):
        columns[OTHERS] = [other_published(cell) for cell in cells]
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def _two_epochs(cells: Sequence[Result], protocol: str) -> dict[str, list[str]]:
    title = {"knn": "kNN"}.get(protocol, protocol)
    return {
        f"{title}, {epoch} epoch": [spread((cell[protocol] or UNMEASURED)[epoch]) for cell in cells]
        for epoch in ("best", "last")
    }


def other_published(cell: Result) -> str:
    """What else was published of a place, with the sources."""
    return "; ".join(f"{number(other['value'])} ({other['source']})" for other in cell["others"]) or DASH


def claim_grid(result: Result) -> Grid:
    """The claims and whether they held."""
    header = ["claim", "data set", "published difference", "difference here", "seeds", "p", "verdict"]
    rows = []
    for claim in result["claims"]:
        told, here = number(claim["published_difference"], sign=True), DASH
        if claim["difference"] is not None:
            here = number(claim["difference"], sign=True) + _deviation(claim["std"])
        if claim.get("ratios"):
            here = f"{claim['difference']:.2f} times{_deviation(claim['std'])}"
            told = DASH if claim["published_ratio"] is None else f"{claim['published_ratio']:g} times"
        p = DASH if claim["p"] is None else f"{claim['p']:.3f}"
        rows.append([claim["claim"], TITLES[claim["dataset"]], told, here, str(claim["seeds"]), p, claim["verdict"]])
    return header, rows


def _deviation(std: float | None) -> str:
    return "" if std is None else f" ± {std:.2f}"


def curve_grid(panel: Mapping[str, Any]) -> Grid:
    """A figure's curves as numbers: an epoch a row, with the steps trained until then; and how much 'all' is of one."""
    names, steps = list(panel["series"]), panel["steps_per_epoch"] or 0
    epochs = sorted({point["epoch"] for points in panel["series"].values() for point in points})
    values = {name: {point["epoch"]: point for point in panel["series"][name]} for name in names}
    rows = [
        [f"{epoch:g}", f"{round(epoch * steps):,}", *(spread(values[name].get(epoch)) for name in names)]
        for epoch in epochs
    ]
    header = ["epoch", "steps", *names]
    if (views := [name for name in names if name != "all"]) and "all" in names:
        header.append("all over one")
        for row, epoch in zip(rows, epochs, strict=True):
            means = {name: values[name][epoch]["mean"] for name in names if epoch in values[name]}
            one = statistics.fmean(means.get(name, 0.0) for name in views)
            row.append(f"{means['all'] / one:.2f}" if one and len(means) == len(names) else DASH)
    return header, rows


def notes(result: Result) -> list[str]:
    """What a reader has to know to read the numbers."""
    said, rows = [f"Scale {result['scale']}: {result['scale_note']}."], result.get("rows", ())
    if result["kind"] == "table":
        said.append(f"Accuracy in percent by {MEASURES[result['measure']]}; mean ± standard deviation over seeds.")
        if result["measure"] == "knn" and result["fewer_vote"]:
            said.append(
                "While a run trains, fewer labels vote than in the paper; in the end all do, and the difference is "
                "taken on that. Claims are judged by both."
            )
        elif result["measure"] != "probe":
            said.append("The difference is taken on the best epoch, which was chosen on the test pictures.")
        if any(row["row"] == "supervised" for row in rows):
            said.append("Supervised is judged by its features, as every other row.")
    cells, panels = [cell for row in rows for cell in row["cells"].values()], result.get("panels", ())
    used = {cell["source"] for cell in cells} | {other["source"] for cell in cells for other in cell["others"]}
    said += [f"{source}: {SOURCES[source]}." for source in SOURCES if source in used]
    for panel in panels:
        seeds = ", ".join(f"{name} {number}" for name, number in panel["seeds"].items())
        said.append(f"Seeds on {TITLES[panel['dataset']]}: {seeds or 'none'}.")
    missing = sum(one["seeds_missing"] for one in (*cells, *panels))
    if missing:
        names = [row["label"] for row in rows if any(cell["seeds_missing"] for cell in row["cells"].values())]
        names += [name for panel in panels for name, seeds in panel["seeds"].items() if seeds == 0]
        which = f": {', '.join(names)}" if names else ""
        said.append(f"{missing} of the runs have not been made, or were not measured like this{which}.")
    if result["claims"]:
        said.append("p: one-sided paired t-test over seeds; a claim is held if the mean says so and p is below 0.05.")
    return [*said, *timing_note(result["cells"].values())]


def timing_note(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """On what the runs were made and how long they took, each with its evaluations; a sentence for each machine."""
    by_machine: dict[str, list[float]] = {}
    for cell in cells:
        known = cell["machine"]
        if cell["seconds"] is not None and "device_name" in known:
            threads = f", {counted(known['threads'], 'thread')} each" if "threads" in known else ""
            place = f"{known['device_name']}{threads}, {known.get('precision', 'unknown precision')}"
            place += ", compiled" if known.get("compiled") else ""
            by_machine.setdefault(place, []).append(cell["seconds"])
    sentences = []
    for place, seconds in by_machine.items():
        each = " to ".join(dict.fromkeys((duration(min(seconds)), duration(max(seconds)))))
        sentences.append(f"{counted(len(seconds), 'run')} on {place}: {duration(sum(seconds))} in all, {each} each.")
    return sentences


def sections(result: Result) -> list[tuple[str, Grid]]:
    """The tables of a result with their headings."""
    made = []
    if result["kind"] == "table":
        made += [(TITLES[dataset], table_grid(result, dataset)) for dataset in result["datasets"]]
    made += [(TITLES[panel["dataset"]], curve_grid(panel)) for panel in result.get("panels", ())]
    if result["claims"]:
        made.append((CLAIMS, claim_grid(result)))
    return [(title, _without_empty_columns(grid)) for title, grid in made]


def _without_empty_columns(grid: Grid) -> Grid:
    """Without the columns that have a dash in every row."""
    header, rows = grid
    kept = [place for place, _ in enumerate(header) if not rows or any(row[place] != DASH for row in rows)]
    return [header[place] for place in kept], [[row[place] for place in kept] for row in rows]


def heading(result: Result) -> str:
    """A result's title in words."""
    kind = result["number"].rstrip("0123456789")
    return f"{result['title']} ({kind} {result['number'].removeprefix(kind)}, scale {result['scale']})"


def crossing_sentences(result: Result) -> list[str]:
    """Where curves cross."""
    said = []
    for panel in result.get("panels", ()):
        for one in panel["crossings"]:
            between = f"{_moment(panel, one['after'])} and {_moment(panel, one['until'])}"
            seeds = f", by the mean; then it is ahead in {one['seeds_ahead']} of {one['seeds']} seeds."
            end = " (one seed)." if one["seeds"] == 1 else seeds
            said.append(f"{TITLES[panel['dataset']]}: {one['ahead']} overtakes {one['behind']} between {between}{end}")
    return said


def _moment(panel: Result, epoch: float) -> str:
    steps = panel["steps_per_epoch"]
    return f"epoch {epoch:g}" + (f" (step {round(epoch * steps):,})" if steps else "")


def markdown(result: Result, *, figure: str | None = None) -> str:
    """The tables of a result; `figure`: the path of its picture."""
    parts = [f"### {heading(result)}"]
    if figure is not None:
        parts.append(f"![{result['title']}]({figure})")
    for title, (header, rows) in sections(result):
        cells = [[text.replace("|", "\\|") for text in line] for line in (header, ["---"] * len(header), *rows)]
        lines = [f"| {' | '.join(line)} |" for line in cells]
        parts.append(f"**{title}**\n\n" + "\n".join(lines))
    parts += crossing_sentences(result)
    parts.append("\n".join(f"- {note}" for note in [*notes(result), f"Command: `{result['command']}`"]))
    return "\n\n".join(parts) + "\n"


def latex(result: Result) -> str:
    """The same tables for a paper; plain LaTeX, no packages."""
    parts = [f"% {heading(result)}", f"% {result['command']}"]
    for title, (header, rows) in sections(result):
        first, *body = (" & ".join(map(_tex, line)) + r" \\" for line in (header, *rows))
        start = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
        lines = [f"% {title}", start, r"\hline", first, r"\hline", *body, r"\hline", r"\end{tabular}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_TEX = {"τ_t": r"$\tau_t$", "m_1": "$m_1$", "m_2": "$m_2$", "±": r"$\pm$", "~": r"\textasciitilde{}"}
_TEX |= {letter: rf"\{letter}" for letter in "&%#_{}"}
_TO_TEX = re.compile("|".join(map(re.escape, _TEX)))


def _tex(text: str) -> str:
    """Text as LaTeX wants it; a minus sign is one."""
    return re.sub(r"^-(?=\d)", "$-$", _TO_TEX.sub(lambda found: _TEX[found[0]], text))


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
    curves = [
        _of(result) | point | {"dataset": panel["dataset"], "series": name}
        for panel in result.get("panels", ())
        for name, points in panel["series"].items()
        for point in points
    ]
    return _csv(CURVE_COLUMNS, curves)


def claims_csv(result: Result) -> str:
    """A line for each claim; of costs and counts, the differences are ratios."""
    lines = []
    for claim in result["claims"]:
        ratio = {"published_difference": claim["published_ratio"]} if claim.get("ratios") else {}
        lines.append(_of(result) | claim | ratio)
    return _csv(CLAIM_COLUMNS, lines)


def _of(result: Result) -> dict[str, Any]:
    return {"study": result["name"], "scale": result["scale"]}


def _csv(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _table_lines(result: Result) -> Iterable[Mapping[str, Any]]:
    """Published numbers stand beside the table's own measure, and beside what the difference is taken on."""
    measure = result["measure"]
    compared = "knn-all" if measure == "knn" and result["fewer_vote"] else measure
    for row in result["rows"]:
        for dataset, cell in row["cells"].items():
            place = _of(result) | {"dataset": dataset, "row": row["row"], "backprop": row["backprop"]}
            values = {measure: cell | {"seeds": len(cell["values"])}}
            values |= {name: cell[name] for name in ("linear", "knn", "knn-all", "probe") if cell.get(name)}
            differences = {measure: None, compared: cell["difference"]}
            if cell["linear_difference"] is not None:
                differences["linear"] = cell["linear_difference"]
            for name, value in values.items():
                means = {f"{epoch}_{key}": of for epoch in ("best", "last") for key, of in (value[epoch] or {}).items()}
                told = {"published": cell["published"], "source": cell["source"]} if name in differences else {}
                others = {"also_published": other_published(cell) if name == measure else ""}
                numbers = {"measure": name, "difference": differences.get(name), "seeds": value["seeds"]}
                yield place | means | told | numbers | others


def draw_curves(result: Result, path: Path) -> list[Path]:
    """Curves over the epochs, a panel for each data set, the deviation over seeds as a band."""
    panels = [panel for panel in result["panels"] if any(panel["series"].values())]
    if not panels:
        return []

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(1.2 + 4.4 * len(panels), 3.6)
        axes_of = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(axes_of, panels, strict=True):
            for style, (name, points) in enumerate(panel["series"].items()):
                draw_line(axes, [(point["epoch"], point["mean"]) for point in points], name, style)
                known = [point for point in points if point["std"] is not None]
                band = [(one["epoch"], one["mean"] - one["std"], one["mean"] + one["std"]) for one in known]
                if band:
                    colour = COLOURS[style % len(COLOURS)]
                    axes.fill_between(*zip(*band, strict=True), color=colour, alpha=0.15, linewidth=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set(xlabel="epoch", title=TITLES[panel["dataset"]])
            if steps := panel["steps_per_epoch"]:
                over = axes.secondary_xaxis(
                    -0.24, functions=(partial(operator.mul, steps), lambda number, steps=steps: number / steps)
                )
                over.set_xlabel("steps")
        axes_of[0].set(ylabel=Y_LABELS[result["kind"]])
        axes_of[0].legend(frameon=False)

    return save_figure(draw, path)


def draw_tsne(runs: Mapping[str, Path], path: Path) -> list[Path]:
    """Maps of finished runs side by side: title -> run directory."""
    draw = draw_maps([replace(read_record(run), title=title) for title, run in runs.items()])
    return [] if draw is None else save_figure(draw, path)


def write_study(out: Path, result: Result, figures: list[Path]) -> list[Path]:
    """Write a result as JSON, Markdown, LaTeX and CSV. Returns the files, the Markdown first."""
    name, folder = result["name"], out / RESULTS
    picture = next((file.name for file in figures if file.suffix == ".svg"), None)
    texts = {
        ".md": markdown(result, figure=picture),
        ".json": json.dumps(result, indent=1) + "\n",
        ".tex": latex(result),
        ".csv": as_csv(result),
    }
    if result["claims"]:
        texts["-claims.csv"] = claims_csv(result)
    for ending, text in texts.items():
        write_text(folder / f"{name}{ending}", text)
    return [*(folder / f"{name}{ending}" for ending in texts), *figures]


def write_page(out: Path) -> Path:
    """The page about everything that was reproduced in this directory so far."""
    manifest, note = read_manifest(out), ""
    scale, studies, unreadable = manifest["scale"], [], []
    with suppress(BadInput):  # a scale that another version made
        note = find_scale(scale).note
    for name in STUDIES:
        path = out / RESULTS / f"{name}.json"
        if path.is_file():
            try:
                studies.append(_study(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png")))
            except (ValueError, KeyError, TypeError, AttributeError):  # the numbers of others are worth a page
                unreadable.append(f"{RESULTS}/{name}.json")
    return render_page(
        out,
        title=f"Reproduction of MSVQ, scale {scale}",
        note=note[:1].upper() + note[1:],
        published=True,
        studies=studies,
        wordy=(OTHERS, "verdict"),  # columns of words, which wrap
        unreadable=unreadable,
        cells=sorted(manifest["cells"].items()),
    )


def render_page(out: Path, **values: Any) -> Path:
    """The page of a sweep: studies with their tables and notes, and its runs."""
    page = templates().get_template("reproduction.html")
    write_text(out / PAGE, page.render(style=resource("page.css"), **values))
    return out / PAGE


def _study(result: Result, picture: Path) -> dict[str, Any]:
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
