"""`msvq reproduce`: a table or figure of the paper, from what is asked for to the page that compares."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.core.console import Display, counted, duration
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.data.sources import open_dataset
from msvq.data.sources.benchmarks import BENCHMARKS, find_benchmark, not_found, read_benchmark
from msvq.report.page import is_report_final, write_report
from msvq.reproduce import formats
from msvq.reproduce.collect import Known, check_same_pictures, collect, read_known, write_known
from msvq.reproduce.estimate import plan_tasks
from msvq.reproduce.experiments import (
    CELLS,
    SCALES,
    STUDIES,
    Request,
    Task,
    check_run,
    choose_datasets,
    choose_rows,
    find_scale,
    find_study,
    is_finished,
    make_tasks,
)
from msvq.reproduce.sweep import RESULTS, SweepDisplay, check_out, read_manifest, run_tasks, sweep_directory
from msvq.reproduce.tables import build_result
from msvq.train.resume import has_checkpoint
from msvq.train.signals import Interrupted

MAX_JOBS = 64
WIDE = 120  # columns of a terminal that has room for every table


class Sweep(NamedTuple):
    """What is asked for, checked."""

    request: Request
    out: Path
    tasks: list[Task]
    command: str
    known: Mapping[str, Known]  # cells that were measured elsewhere
    num_covered: int  # of those that are asked for, how many need no run for that


def plan_sweep(
    name: str,
    *,
    scale: str = "mini",
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    out: Path | None = None,
    linear: bool = False,
    known: Path | None = None,
) -> Sweep:
    """What is asked for as cells. Bad input is told here, before anything is touched."""
    study, size = find_study(name), find_scale(scale)
    if epochs is not None:
        if scale not in SCALES:
            raise BadInput(f"scale {scale} has its length in its name; leave out --epochs, or name another scale")
        size = size.lasting(epochs)
    num_seeds = size.num_seeds if seeds is None else seeds
    if num_seeds < 1:
        raise BadInput(f"--seeds is a number of repetitions, at least 1, not {seeds}")
    num_seeds = 1 if study.kind == "map" else num_seeds  # a picture of one run
    chosen = choose_datasets(study, size, datasets)
    request = Request(study, size, chosen, choose_rows(study, size, methods), tuple(range(num_seeds)), linear)
    if linear and request.measure == "knn":
        raise BadInput(f"--linear is for tables of linear accuracy; {study.name} is measured by kNN: leave it out")
    place = out or Path("runs") / f"reproduce-{size.name}"
    tasks = make_tasks(place, [(cell, request.protocols(cell)) for cell in request.cells().values()])
    records = {} if known is None else read_known(expanduser(known))
    covered = [task for task in tasks if task.cell.name in records and records[task.cell.name].covers(task)]
    for task in covered:
        records[task.cell.name].check(task.cell)
    left = [task for task in tasks if task not in covered]
    flags = {
        "scale": scale,
        "epochs": epochs,
        "datasets": ",".join(datasets or ()) or None,
        "methods": ",".join(methods or ()) or None,
        "seeds": seeds,
        "known": known,
    }
    words = [word for key, value in flags.items() if value is not None for word in (f"--{key}", str(value))]
    command = shlex.join(["msvq", "reproduce", study.name, *words, *["--linear"] * linear])
    return Sweep(request, place, left, command, records, len(covered))


def check_sweep(sweep: Sweep, jobs: int) -> None:
    """Raise if so many cannot run at once, or if what is there is of something else."""
    if not 1 <= jobs <= MAX_JOBS:
        raise BadInput(f"--jobs is a number of runs at once, 1 to {MAX_JOBS}, not {jobs}")
    check_out(sweep.out, sweep.request.scale.name)
    for task in sweep.tasks:
        check_run(task.cell, task.run)


class Outcome(NamedTuple):
    """What a sweep has come to."""

    result: dict[str, Any]
    files: list[Path]  # the page first
    failed: dict[str, str]  # cell -> reason


def reproduce(
    sweep: Sweep,
    *,
    data_root: Path | None = None,
    download: bool = False,
    jobs: int = 1,
    compiled: bool = False,
    console: Console,
) -> Outcome:
    """Run what is not finished, and write the comparison."""
    check_sweep(sweep, jobs)
    out, tasks, display = sweep.out, sweep.tasks, Display(console)
    study, scale = sweep.request.study, sweep.request.scale.name

    # the pictures, once, before the cells start
    left = [task for task in tasks if not task.is_finished]
    find_data({task.cell.dataset for task in left}, data_root, download=download, display=display)
    for task in {task.cell.dataset: task for task in left}.values():  # one of each data set
        check_pictures(sweep, task, data_root, display)

    # the cells, and what they come to
    with sweep_directory(out, scale, tasks):
        title = formats.heading({"number": study.number, "title": study.title, "scale": scale})
        cells = f"{counted(len(tasks), 'cell')}, {len(tasks) - len(left)} of them finished"
        more = f"; {sweep.num_covered} more are known from elsewhere" if sweep.num_covered else ""
        display.note(f"{title}: {cells}, in {out}{more}")
        shown = SweepDisplay(console, tasks)
        try:
            failed = run_tasks(out, tasks, jobs=jobs, data_root=data_root, compiled=compiled, display=shown)
        except Interrupted:
            write_comparison(sweep)  # what is finished is a table already, with fewer seeds or rows
            raise
        result, files = write_comparison(sweep)
    return Outcome(result, files, failed)


def find_data(datasets: set[str], data_root: Path | None, *, download: bool, display: Display) -> None:
    """Raise if a data set is not there, and say how to get it; or fetch it."""
    root = None if data_root is None else expanduser(data_root)
    if root is not None and not root.is_dir() and not download:
        raise BadInput(f"--data-root {str(data_root)!r} is not a folder")
    for name in sorted(datasets & set(BENCHMARKS)):
        if download:
            read_benchmark(name, root, download=True, display=display)
        elif find_benchmark(name, root) is None:
            raise not_found(name, root)


def check_pictures(sweep: Sweep, task: Task, data_root: Path | None, display: Display) -> None:
    """Raise if cells of a task's data set were trained on other pictures than it would be."""
    dataset = task.cell.dataset
    known = {
        name: record.measured.machine["data_fingerprint"]
        for name, record in sweep.known.items()
        if name.startswith(f"{dataset}-") and "data_fingerprint" in record.measured.machine
    }
    for path in (sweep.out / CELLS).glob(f"{dataset}-*/environment.json"):
        if not has_checkpoint(path.parent) and not is_finished(path.parent):
            continue  # it has nothing to lose, and is begun again
        with suppress(OSError, ValueError, TypeError, KeyError):  # whoever reads that run says it better
            known[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))["data_fingerprint"]
    if not known:
        return
    settings = task.cell.settings(data_root)
    data = open_dataset(settings.data, display=display)
    data.close()
    ours = data.fingerprint
    other = next((cell for cell, pictures in known.items() if pictures != ours), None)
    if other is not None:
        where = "" if data_root is None else f" than {str(data_root)!r} has"
        way_out = "leave out --known" if other in sweep.known else "another --out"
        raise BadInput(
            f"the cell {other} was trained on other pictures of {dataset}{where}; "
            f"give the --data-root that it had, or {way_out}"
        )


def write_comparison(sweep: Sweep) -> tuple[dict[str, Any], list[Path]]:
    """Collect what the finished cells have measured and write it in every form. Returns the result and its files."""
    out = sweep.out
    request, found = collect(sweep.request, out, read_manifest(out)["cells"], sweep.known)
    check_same_pictures(found)
    for run in {out / CELLS / one.cell for one in found.values()}:
        if is_finished(run) and not is_report_final(run):  # it was killed just before
            write_report(run)
    write_known(out / RESULTS, request.scale.name, found.values(), out / CELLS, sweep.known)
    result = build_result(request, found, command=sweep.command)
    path, figures = out / RESULTS / request.study.name, []
    if request.study.kind in ("curves", "false-negatives"):
        figures = formats.draw_curves(result, path)
    elif request.study.kind == "map":
        titles = {row.key: row.label for row in request.rows}
        runs = {titles[key]: out / CELLS / one.cell for (_, key, _), one in found.items()}
        figures = formats.draw_tsne(runs, path)
    files = formats.write_study(out, result, figures)
    return result, [formats.write_page(out), *files]


def show_list(console: Console) -> None:
    """Print what there is."""
    table = Table("name", "the paper's", "what", "rows", box=box.SIMPLE, pad_edge=False)
    for study in STUDIES.values():
        table.add_row(study.name, study.number, study.title, str(len(study.rows)))
    console.print(table)
    for scale in SCALES.values():
        Display(console).note(f"--scale {scale.name}: {scale.note} ({', '.join(scale.datasets)})")
    Display(console).note("Start with: msvq reproduce linear --scale smoke")


def dry_run(sweep: Sweep, *, data_root: Path | None, jobs: int, console: Console) -> None:
    """Print the cells and how long they will take; nothing is trained or written."""
    check_sweep(sweep, jobs)
    planned = list(plan_tasks(sweep.tasks, data_root=data_root, display=Display(Console(stderr=True))))
    say = Display(console).note
    if sweep.num_covered:
        say(f"{sweep.num_covered} cells are known from elsewhere, and are not run")
    if not planned:
        say("there is nothing left to run; the same command without --dry-run writes the tables")
        return
    later = any(task.protocols for task, _, _ in planned)
    table = Table("cell", "state", *["after it"] * later, "left", box=box.SIMPLE, pad_edge=False)
    for task, state, seconds in planned:
        protocols = [", ".join(task.protocols)] * later
        table.add_row(task.cell.name, state, *protocols, duration(seconds) if seconds else "nothing")
    console.print(table)
    total = sum(seconds for _, _, seconds in planned)
    say(f"{counted(len(planned), 'cell')} in {sweep.out}, {duration(total)} one after the other")
    if total:
        say(
            "A few steps of MSVQ on each data set were timed; other methods follow by their passes through the network."
        )
    if jobs > 1:
        say(f"--jobs {jobs} shares the processors, so on a CPU it saves little; on a GPU it fills the gaps.")


def as_table(title: str, grid: formats.Grid, *, narrow: bool) -> Table:
    """For a terminal."""
    header, rows = grid
    kept = [place for place, name in enumerate(header) if not (narrow and name == formats.OTHERS)]
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for place in kept:
        table.add_column(header[place], overflow="fold", justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    return table


def show(outcome: Outcome, console: Console) -> None:
    """Print a result's tables, the failures, and where everything is."""
    say = Display(console).note
    say(formats.heading(outcome.result))
    narrow = console.width < WIDE
    for title, grid in formats.sections(outcome.result):
        if narrow and title == formats.CLAIMS:  # a table of them has no room
            say(title)
            for row in grid[1]:
                told = dict(zip(grid[0], row, strict=True))
                say(f"- {told.pop('claim')}:")
                place, verdict = told.pop("data set"), told.pop("verdict")
                say(f"  {place}: {verdict}; {', '.join(f'{name} {value}' for name, value in told.items())}")
        else:
            console.print(as_table(title, grid, narrow=narrow))
    for note in [*formats.crossing_sentences(outcome.result), *formats.notes(outcome.result)]:
        say(note)
    for cell, reason in outcome.failed.items():
        say(f"failed: {cell}: {reason}")
    say(f"report  {outcome.files[0]}")
    say(f"tables  {outcome.files[1].with_suffix('')}.md .json .tex .csv")
