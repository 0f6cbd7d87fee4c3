"""What `msvq reproduce` prints: the list, a dry run, and a result."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.core.console import Display
from msvq.preflight.advice import duration
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


def as_table(title: str, grid: formats.Grid) -> Table:
    """For a terminal."""
    header, rows = grid
    table = Table(*header, title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
        column.justify = "left" if column is table.columns[0] else "right"
    for row in rows:
        table.add_row(*row)
    return table


def show(outcome: Outcome, console: Console) -> None:
    """Print a result's tables, the failures, and where everything is."""
    say = Display(console).note
    say(formats.heading(outcome.result))
    for title, grid in formats.sections(outcome.result):
        if console.width >= WIDE:
            console.print(as_table(title, grid))
        elif title == formats.CLAIMS:
            say(title)
            for line in formats.claim_lines(grid):
                say(line)
        else:
            console.print(as_table(title, formats.without(grid, formats.OTHERS)))
    for note in [*formats.crossing_sentences(outcome.result), *formats.notes(outcome.result)]:
        say(note)
    for cell, reason in outcome.failed.items():
        say(f"failed: {cell}: {reason}")
    say(f"report  {outcome.files[0]}")
    say(f"tables  {outcome.files[1].with_suffix('')}.md .json .tex .csv")
