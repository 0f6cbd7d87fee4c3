"""What every command over features gives back: a table for programs, a page to look at, pictures in a notebook."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import to_csv, write_text
from msvq.data.sources.base import EncodedSource, ImageSource
from msvq.data.sources.folders import FileImages
from msvq.data.store import spaced_rows
from msvq.evaluate.diagnostics.collapse import SAME
from msvq.evaluate.diagnostics.health import spread
from msvq.model.whitening import Whitened
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import Skipped
from msvq.search.index import Index, open_index
from msvq.search.inputs import Inputs
from msvq.search.page import (
    ENDINGS,
    Card,
    Group,
    Thumbnails,
    make_thumbnails,
    positions_of,
    render_pictures,
    write_page,
)

TABLES = (".csv", ".json")
SAMPLE = 2000  # pictures by which a collapse is noticed
PAGE_GROUPS, PAGE_PICTURES = 100, 600  # shown on a page
NOTEBOOK_GROUPS, NOTEBOOK_PICTURES = 12, 120
MOST_WORK = 2e12  # products of numbers of a feature: an hour of one core
LONGEST_NAME = 255  # bytes of a file's name

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Rows of a table, and groups of pictures that show them."""

    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[Group, ...] = field(repr=False)
    source: ImageSource = field(repr=False)
    skipped: Skipped = field(default=(), repr=False)  # pictures that could not be read, and why
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Cell]]:
        """The rows by the names of their columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def names(self) -> list[str]:
        """The picture of each row."""
        column = self.columns.index("file")
        return [str(row[column]) for row in self.rows]

    def overview(self) -> tuple[Sequence[str], Sequence[tuple[Cell, ...]]]:
        """Columns and rows to print: those of the table, where nothing is shorter."""
        return self.columns, self.rows

    def page_groups(self) -> list[Group]:
        """The first groups, as many pictures as a page has room for."""
        return shorten(self.groups[:PAGE_GROUPS], PAGE_PICTURES)

    def thumbnails(self, positions: Iterable[int]) -> Thumbnails:
        """Small pictures of some positions."""
        return make_thumbnails(self.source, positions)

    def files_of(self, positions: Iterable[int]) -> dict[int, str]:
        """The files behind pictures, where they are files."""
        return {place: self.source[place] for place in positions} if isinstance(self.source, FileImages) else {}

    def write(self, out: Path | None, html: Path | None, *, further: Mapping[int, Group] = {}) -> None:
        """Write the table (.csv or .json) and the page, where they are wanted.

        On the page, a click on a picture leads to its group in `further`, where it has one.
        """
        if out is not None:
            write_table(out, self)
        if html is not None:
            groups, sentence = self.page_groups(), self.sentence
            if further:
                sentence += " A click on a picture leads to those most like it."
            if len(self.groups) > PAGE_GROUPS:
                sentence += f" The first {PAGE_GROUPS} groups are shown."
            positions = [*positions_of(groups), *positions_of(further.values())]
            thumbnails, files = self.thumbnails(positions), self.files_of(positions)
            write_page(html, self.title, sentence, groups, thumbnails, files, notes=self.notes, further=further)

    def _repr_html_(self) -> str:
        """What a notebook shows: the first groups."""
        groups = shorten(self.groups[:NOTEBOOK_GROUPS], NOTEBOOK_PICTURES)
        return render_pictures(self.title, self.sentence, groups, self.thumbnails(positions_of(groups)), self.notes)


def write_table(path: Path, found: Findings) -> None:
    """Write the rows as CSV or JSON, by the ending."""
    if path.suffix.lower() == ".csv":
        write_text(path, to_csv([found.columns, *found.rows]))
    else:
        write_text(path, json.dumps({"about": found.sentence, "rows": found.records()}, indent=1) + "\n")


def shorten(groups: Sequence[Group], most: int) -> list[Group]:
    """Groups that have `most` pictures together, or nearly: long ones are cut to one length."""
    sizes = [len(group.cards) for group in groups]
    length = next((n for n in range(most, 1, -1) if sum(min(size, n) for size in sizes) <= most), 1)
    return [
        group
        if len(group.cards) <= length
        else replace(
            group, sentence=f"{group.sentence} The first {length} of them.".strip(), cards=group.cards[:length]
        )
        for group in groups
    ]


def open_pictures(
    inputs: Inputs,
    out: Path | None,
    html: Path | None,
    display: Display,
    *,
    num: int | None = None,
    least: int = 1,
    into: Path | None = None,
) -> tuple[LoadedEncoder, ImageSource]:
    """The encoder and the pictures, once it is clear that the results can be written; none is decoded yet.

    `num`: as many as a command takes with --num, from `least` on. `into`: a folder for links or copies.
    """
    if num is not None and num < least:
        raise BadInput(f"--num is at least {least}, not {num}")
    inputs.check_output("--out", out, TABLES)
    inputs.check_output("--html", html, ENDINGS)
    encoder, source = inputs.open(display)
    check_folder(into, source)
    check_enough(len(source), num)
    return encoder, source


def open_features(encoder: LoadedEncoder, source: ImageSource, display: Display, *, num: int | None = None) -> Index:
    """The features of all pictures that can be read, which are at least `num`, by an encoder that tells them apart."""
    index = open_index(source, encoder, display)
    if has_collapsed(encoder, index):
        raise BadInput(
            f"the encoder has collapsed, or the pictures are all the same: it gives nearly the same features for all "
            f"{len(index):,}, so nothing that it finds would mean anything; take another checkpoint, or train it anew"
        )
    check_enough(len(index), num)
    return index


def check_enough(there: int, num: int | None) -> None:
    """Raise if --num asks for more pictures than there are."""
    if num is not None and num > there:
        raise BadInput(f"--num {num:,} is more than the {there:,} pictures that there are; take fewer")


def check_work(encoder: LoadedEncoder, source: ImageSource, num: int, others: int = 0) -> None:
    """Raise if comparing every picture with `num` and some others would take hours."""
    most = int(MOST_WORK / (len(source) * encoder.feature_dim)) - others
    if num > most:
        raise BadInput(
            f"--num {num:,} is too many for {len(source):,} pictures, each of which is compared with all of those; "
            f"take at most {max(0, most):,}"
        )


def has_collapsed(encoder: LoadedEncoder, index: Index) -> bool:
    """Whether all pictures of an index look the same to the encoder, by a sample of them, before any whitening."""
    if len(index) < 3:
        return False
    network, rows = encoder.network, spaced_rows(len(index), SAMPLE)
    if not isinstance(network, Whitened):
        return spread(torch.from_numpy(np.array(index.features[rows]))) < SAME
    raw = open_index(index.source, encoder, Display(), raw=True).features  # unit features cannot be undone
    return spread(network.whitening.undo(torch.from_numpy(np.array(raw[rows])))) < SAME


def make_card(index: Index, row: int, note: str) -> Card:
    """The picture of a row, with a note below it."""
    match = index.match(row, 0.0)
    return Card(match.position, match.name, match.class_name, note)


# --- folders of links or copies


def check_folder(folder: Path | None, source: ImageSource) -> None:
    """Raise if links or copies of pictures cannot go there: it must be new or empty, and not among the pictures."""
    if folder is None:
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--into {str(folder)!r} holds something already; name a new or an empty folder")
    if isinstance(source, FileImages):  # of a list, `origin` is the list, and its pictures may lie anywhere
        holding = {Path(source.origin), *(Path(source[position]).parent for position in range(len(source)))}
        if {folder.resolve(), *folder.resolve().parents} & {place.resolve() for place in holding}:
            raise BadInput(f"--into {str(folder)!r} lies among the pictures; name a folder elsewhere")


def fill_folder(folder: Path, source: ImageSource, places: Mapping[str, Sequence[int]], display: Display) -> None:
    """A subfolder per group with links to its pictures, or with copies where there is no file to link to."""
    with display.task(f"filling {folder.name}", sum(map(len, places.values()))) as advance:
        for name, positions in places.items():
            (folder / name).mkdir(parents=True)
            for number, position in enumerate(positions, start=1):
                _put(source, position, folder / name, f"{number:04}")
                advance(1)


def _put(source: ImageSource, position: int, folder: Path, number: str) -> None:
    content = source[position] if isinstance(source, EncodedSource) else None
    if isinstance(content, str):
        name, original = Path(content).name, Path(content).absolute()
        while len(os.fsencode(f"{number}-{name}")) > LONGEST_NAME:
            name = name[1:]  # its end says what it is
        target = folder / f"{number}-{name}"
        try:
            target.symlink_to(original)
        except OSError:  # a disk without links
            with suppress(FileNotFoundError):
                shutil.copyfile(original, target)
        return
    if content is not None:
        (folder / f"{number}{Path(source.names[position]).suffix}").write_bytes(content)
        return
    with closing(source.decoded([np.array([position])], 0)) as results:
        Image.fromarray(next(results).rows[0]).save(folder / f"{number}.png")
