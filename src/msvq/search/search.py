"""`msvq search`: the pictures of a source that are most like a query, by the cosine of their features."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.data.sources.base import ImageSource, Positions
from msvq.runs.encoder import LoadedEncoder
from msvq.search.findings import Cell, Findings, make_card, open_pictures
from msvq.search.index import Index, Match, open_index, unit_rows
from msvq.search.inputs import Inputs, open_files
from msvq.search.page import Card, Group, Thumbnails, make_thumbnails, positions_of

ROWS = 65_536  # compared at a time: 128 MB of features with 512 numbers each
QUERIES = 256  # looked up at a time
FILES = 64  # of those that are no pictures of the source, decoded at a time
# Of a page: pictures beside one that is clicked on, how many more it holds for that, and how often one can go on.
NEAR, FURTHER, ROUNDS = 6, 240, 3


Query = Path | int  # a file, or the position of a picture of the source


@dataclass(frozen=True)
class Answer:
    """What a query found, nearest first."""

    query: str
    hits: tuple[Match, ...]


@dataclass(frozen=True, kw_only=True)
class Searched(Findings):
    """The pictures most like each query, in the order of the queries."""

    answers: tuple[Answer, ...]
    num_pictures: int
    files: tuple[Path, ...] = field(repr=False)  # those of the queries: the first is at position -1, and so on

    def thumbnails(self, positions: Iterable[int]) -> Thumbnails:
        """Of pictures of the source, and of files that were asked for."""
        positions = list(positions)
        asked = make_thumbnails(open_files(self.files), [-1 - place for place in positions if place < 0])
        there = make_thumbnails(self.source, _of_source(positions))
        return {**there, **{-1 - place: made for place, made in asked.items()}}

    def files_of(self, positions: Iterable[int]) -> dict[int, str]:
        """The files behind pictures."""
        asked = {-1 - place: str(file) for place, file in enumerate(self.files)}
        return super().files_of(_of_source(positions)) | asked


def nearest(
    features: NDArray[np.float32], queries: NDArray[np.float32], num: int
) -> tuple[NDArray[np.float32], Positions]:
    """Cosines and rows [Q, num] of the unit features [N, d] most like the unit queries [Q, d], nearest first.

    Exact: every row is compared, some at a time, so that features mapped from disk need no memory of their own.
    """
    num = min(num, len(features))
    asked = torch.from_numpy(queries).T.contiguous()
    scores = torch.full((len(queries), 0), 0.0)
    rows = torch.zeros((len(queries), 0), dtype=torch.int64)
    for start in range(0, len(features), ROWS):
        found = (torch.from_numpy(features[start : start + ROWS]) @ asked).T
        best = found.topk(min(num, found.shape[1]), dim=1)
        scores, rows = torch.cat([scores, best.values], 1), torch.cat([rows, best.indices + start], 1)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :num]  # stable: of equals, the first
        scores, rows = scores.gather(1, order), rows.gather(1, order)
    return scores.clamp(-1, 1).numpy(), rows.numpy()


def search(
    inputs: Inputs,
    queries: Sequence[str | Path],
    *,
    top: int = 20,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Searched:
    """The `top` nearest pictures to each query: a file, or the name of a picture of the source."""
    display = display or Display()
    if top < 1:
        raise BadInput(f"--top is the number of pictures to show, at least 1, not {top}")
    if not queries:
        raise BadInput("there is nothing to search for; name a picture with --query")
    encoder, source = open_pictures(inputs, out, html, display)
    asked = find_queries("--query", list(map(str, queries)), source)
    files = list(dict.fromkeys(query for query in asked if isinstance(query, Path)))
    file_features = _embed_files("--query", files, encoder)
    index = open_index(source, encoder, display)
    features = [file_features[q] if isinstance(q, Path) else _indexed_feature("--query", q, index) for q in asked]
    with display.task("searching", len(features)) as advance:
        found_rows = []
        for start in range(0, len(features), QUERIES):
            found_rows.append(nearest(index.features, np.stack(features[start : start + QUERIES]), top))
            advance(len(found_rows[-1][0]))
    scores, rows = (np.concatenate(part) for part in zip(*found_rows, strict=True))
    answers, groups = [], []
    table: list[tuple[Cell, ...]] = []
    for query, place, *matches in zip(map(str, queries), asked, scores.tolist(), rows.tolist(), strict=True):
        hits = tuple(index.match(row, score) for score, row in zip(*matches, strict=True))
        answers.append(Answer(query, hits))
        table += [(query, rank, round(h.similarity, 4), h.class_name, h.name) for rank, h in enumerate(hits, start=1)]
        name = Path(query).name
        lead = Card(place if isinstance(place, int) else -1 - files.index(place), name, note="query")
        cards = [Card(hit.position, hit.name, hit.class_name, f"{hit.similarity:.3f}") for hit in hits]
        groups.append(Group(f"Most like {name}", "", cards, lead))
    found = Searched(
        title="Similar pictures",
        sentence=f"The most similar of {len(index):,} pictures in {source.title}, by the cosine of their features: 1 "
        f"is the same to the encoder, and it sees the square in the middle that is shown here.",
        columns=("query", "rank", "cosine", "class", "file"),
        rows=tuple(table),
        groups=tuple(groups),
        source=source,
        skipped=index.left_out,
        answers=tuple(answers),
        num_pictures=len(index),
        files=tuple(files),
    )
    further = {}
    if html is not None:
        there = _of_source(positions_of(found.page_groups()))
        further = _find_further(index, np.searchsorted(index.kept, there).tolist())
    found.write(out, html, further=further)
    return found


def find_queries(option: str, queries: Sequence[str], source: ImageSource) -> list[Query]:
    """The pictures that an option names, before any is embedded."""
    paths = list(map(expanduser, queries))
    names = {query for query, path in zip(queries, paths, strict=True) if not path.is_file()}
    # In one pass, as there may be many of both. What we have written has escapes for odd letters.
    places = {name: place for place, name in enumerate(source.names) if name in names} if names else {}
    if missing := names - places.keys():
        escaped = [(printable(name), place) for place, name in enumerate(source.names)]
        alike = Counter(name for name, _ in escaped if name in missing)
        places |= {name: place for name, place in escaped if alike[name] == 1}
    for query, path in zip(queries, paths, strict=True):
        if query in names and query not in places:
            folder, no_file = "is a folder, which --data takes", "is no file, nor the name of a picture there"
            kind = folder if query and path.is_dir() else no_file
            raise BadInput(f"{option} {query!r} {kind}; name a picture, such as {source.names[0]!r}")
    return [places[query] if query in names else path for query, path in zip(queries, paths, strict=True)]


def embed_queries(option: str, asked: Sequence[Query], index: Index, encoder: LoadedEncoder) -> NDArray[np.float32]:
    """Unit features [Q, d] of the pictures that an option named."""
    files = _embed_files(option, list(dict.fromkeys(query for query in asked if isinstance(query, Path))), encoder)
    found = [files[query] if isinstance(query, Path) else _indexed_feature(option, query, index) for query in asked]
    return np.array(found, np.float32).reshape(len(found), index.features.shape[1])


def _embed_files(option: str, paths: Sequence[Path], encoder: LoadedEncoder) -> dict[Path, NDArray[np.float32]]:
    """Unit features [d] of files, read in a process of their own: a query may be any file."""
    if not paths:
        return {}  # without a process to decode none
    how = encoder.preprocessing
    found: dict[Path, NDArray[np.float32]] = {}
    portions = [np.arange(start, min(start + FILES, len(paths))) for start in range(0, len(paths), FILES)]
    with closing(open_files(paths).decoded(portions, how.side, how.resizing, workers=1)) as results:
        for portion, result in zip(portions, results, strict=True):
            some = paths[portion[0] : portion[-1] + 1]
            for place, reason in result.reasons.items():
                raise BadInput(f"{option} {str(some[place])!r} {reason}; name a picture that can be read")
            found.update(zip(some, unit_rows(encoder(result.rows)), strict=True))
    return found


def _indexed_feature(option: str, position: int, index: Index) -> NDArray[np.float32]:
    """The unit feature [d] of a picture of the source."""
    if position in index.skipped:
        name, reason = index.source.names[position], index.skipped[position]
        raise BadInput(f"{option} {name!r} {reason}; name a picture that can be read")
    return np.array(index.features[np.searchsorted(index.kept, position)])


def _of_source(positions: Iterable[int]) -> list[int]:
    """Those of pictures of the source, each once."""
    return [position for position in dict.fromkeys(positions) if position >= 0]


def _find_further(index: Index, rows: list[int]) -> dict[int, Group]:
    """By their positions: pictures on a page with the NEAR most like each, and some of those in turn, up to FURTHER."""
    found: dict[int, Group] = {}
    seen = set(rows)
    most = len(seen) + FURTHER
    for _ in range(ROUNDS):
        scores, near = nearest(index.features, np.array(index.features[rows[:FURTHER]]), NEAR + 1)
        there, rows = rows[:FURTHER], []
        for row, *matches in zip(there, scores.tolist(), near.tolist(), strict=True):
            others = [(score, other) for score, other in zip(*matches, strict=True) if other != row][:NEAR]
            new = [other for _, other in others if other not in seen]
            if len(seen) + len(new) > most:
                return found
            lead, cards = make_card(index, row, ""), [make_card(index, other, f"{s:.3f}") for s, other in others]
            found[lead.position] = Group(f"Most like {lead.name}", "", cards, lead)
            seen.update(new)
            rows += new
    return found
