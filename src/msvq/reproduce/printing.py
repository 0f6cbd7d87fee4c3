"""What `msvq reproduce` prints: the list, a dry run, and a result."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.core.console import Display
from msvq.preflight.plan import duration
from msvq.reproduce import formats
from msvq.reproduce.estimate import Planned
from msvq.reproduce.experiments import SCALES, STUDIES
from msvq.reproduce.reproduce import Outcome, Sweep

WIDE = 120  # columns of a terminal that has room for every table


def show_list(console: Console) -> None:
    """Print what there is."""
    table = Table("name", "the paper's", "what", "rows", box=box.SIMPLE, pad_edge=False)
    for study in STUDIES.values():
        table.add_row(study.name, study.number, study.title, str(len(study.rows)))
    console.print(table)
    for scale in SCALES.values():
        Display(console).note(f"--scale {scale.name}: {scale.note} ({', '.join(scale.datasets)})")
    Display(console).note("Start with: msvq reproduce linear --scale smoke")


def show_plan(sweep: Sweep, planned: Sequence[Planned], jobs: int, console: Console) -> None:
    """Print a dry run."""
    say = Display(console).note
    if sweep.num_covered:
        say(f"{sweep.num_covered} cells are known from elsewhere, and are not run")
    if not planned:
        say("there is nothing left to run; the same command without --dry-run writes the tables")
        return
    table = Table("cell", "state", "after it", "left", box=box.SIMPLE, pad_edge=False)
    for one in planned:
        left = duration(one.seconds) if one.seconds else "-"
        table.add_row(one.task.cell.name, one.state, ", ".join(one.task.protocols) or "-", left)
    console.print(table)
    total = sum(one.seconds for one in planned)
    say(f"{len(planned)} cells in {sweep.out}, {total / 3600:.2f} hours one after the other")
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
            for claim, dataset, told, here, seeds, p, verdict in grid[1]:
                say(f"- {claim}:")
                say(f"  {dataset}: {verdict}; here {here}, published {told}, seeds {seeds}, p {p}")
        else:
            console.print(as_table(title, grid, narrow=narrow))
    for note in [*formats.crossing_sentences(outcome.result), *formats.notes(outcome.result)]:
        say(note)
    for cell, reason in outcome.failed.items():
        say(f"failed: {cell}: {reason}")
    say(f"report  {outcome.files[0]}")
    say(f"tables  {outcome.files[1].with_suffix('')}.md .json .tex .csv")
