"""`msvq search`: the pictures of a source that are most like a query, by the cosine of their features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import check_output_file, expanduser
from msvq.data.sources.base import ImageSource, Positions
from msvq.data.workers import Workers
from msvq.runs.encoder import LoadedEncoder, load_encoder
from msvq.runs.run_dir import RunDir, open_run
from msvq.search.embedding import open_source
from msvq.search.index import Index, open_index, unit_rows
from msvq.search.page import Cell, Group, make_thumbnails, named_class, write_page

ROWS = 65_536  # compared at a time: 128 MB of features with 512 numbers each


@dataclass(frozen=True)
class Hit:
    """A picture that was found."""

    rank: int
    similarity: float  # the cosine, 1 for the same features
    name: str
    class_name: str  # empty where unknown
    position: int  # in the source


@dataclass(frozen=True)
class Answer:
    """What a query found, nearest first."""

    query: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class Searched:
    """The answers to all queries, and what they were looked up in."""

    answers: tuple[Answer, ...]
    num_pictures: int
    skipped: tuple[tuple[str, str], ...]


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
    run: str | Path | RunDir,
    queries: Sequence[str | Path],
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    split: str = "all",
    download: bool = False,
    top: int = 20,
    html: Path | None = None,
    checkpoint: str = "last",
    device: str | None = None,
    precision: str | None = None,
    display: Display | None = None,
) -> Searched:
    """The `top` nearest pictures to each query: a file, or the name of a picture of the source.

    The arguments are those of `msvq search`; `html` is a page that is written with thumbnails.
    """
    display = display or Display()
    if top < 1:
        raise BadInput(f"--top is the number of pictures to show, at least 1, not {top}")
    if not queries:
        raise BadInput("there is nothing to search for; name a picture with --query")
    if html is not None:
        check_output_file("--html", html, [".html", ".htm"])
    run = run if isinstance(run, RunDir) else open_run(run)
    encoder = load_encoder(run, checkpoint).to(device, precision)
    source = open_source(run, data, data_root, split=split, download=download, display=display)
    asked = [_find(str(query), source) for query in queries]
    pictures = _read([query for query in asked if isinstance(query, Path)], encoder)
    index = open_index(source, encoder, display=display)
    vectors = [_vector(query, pictures, index, encoder, source) for query in asked]
    with display.busy("searching"):
        scores, rows = nearest(index.features, np.concatenate(vectors), top)
    answers = tuple(
        Answer(str(query), tuple(_hits(source, index, *found)))
        for query, *found in zip(queries, scores, rows, strict=True)
    )
    if html is not None:
        _write_html(html, source, asked, answers, len(index))
    skipped = (*source.unlisted, *((source.names[i], reason) for i, reason in sorted(index.skipped.items())))
    return Searched(answers, len(index), skipped)


def _find(query: str, source: ImageSource) -> Path | int:
    """The file that a query names, or the position of the picture of that name."""
    path = expanduser(query)
    if path.is_file():
        return path
    try:
        return source.names.index(query)
    except ValueError:
        shown = [index for index, name in enumerate(source.names) if printable(name) == query]
        if len(shown) == 1:  # as it stands in what we have written, where odd letters are escapes
            return shown[0]
        kind = "is a folder" if query and path.is_dir() else "is no file, nor the name of a picture there"
        raise BadInput(f"--query {query!r} {kind}; name a picture, such as {source.names[0]!r}") from None


def _read(paths: Sequence[Path], encoder: LoadedEncoder) -> dict[Path, NDArray[np.float32]]:
    """Features [1, d] of files, read in a process of their own: a query may be any file."""
    if not paths:
        return {}
    workers = Workers(1)
    try:
        found = {}
        for path in dict.fromkeys(paths):
            result = next(workers.map("decode", [[str(path)]], side=encoder.size))
            if result.reasons:
                raise BadInput(f"--query {str(path)!r} {result.reasons[0]}; name a picture that can be read")
            found[path] = unit_rows(encoder(result.rows))
        return found
    finally:
        workers.close()


def _vector(
    query: Path | int,
    pictures: dict[Path, NDArray[np.float32]],
    index: Index,
    encoder: LoadedEncoder,
    source: ImageSource,
) -> NDArray[np.float32]:
    """A query's unit feature [1, d]."""
    if isinstance(query, Path):
        return pictures[query]
    row = int(np.searchsorted(index.kept, query))
    if row == len(index) or index.kept[row] != query:
        raise BadInput(f"--query {source.names[query]!r} {index.skipped[query]}; name a picture that can be read")
    return np.array(index.features[row : row + 1])


def _hits(source: ImageSource, index: Index, scores: NDArray[np.float32], rows: Positions) -> Iterator[Hit]:
    for rank, (score, row) in enumerate(zip(scores, rows, strict=True), start=1):
        position = int(index.kept[row])
        yield Hit(rank, float(score), source.names[position], named_class(source, position), position)


def _write_html(
    path: Path, source: ImageSource, asked: Sequence[Path | int], answers: Sequence[Answer], num_pictures: int
) -> None:
    shown = (hit.position for answer in answers for hit in answer.hits)
    named = [query for query in asked if isinstance(query, int)]
    files = [query for query in asked if isinstance(query, Path)]
    thumbnails = make_thumbnails(source, [*shown, *named], files)
    groups = []
    for query, answer in zip(asked, answers, strict=True):
        short = Path(answer.query).name
        lead = Cell(thumbnails[query], short, "query", "", title=answer.query)
        hits = [Cell(thumbnails[h.position], h.name, f"{h.similarity:.3f}", h.class_name) for h in answer.hits]
        groups.append(Group(f"Most like {short}", "", hits, lead))
    sentence = (
        f"The most similar of {num_pictures:,} pictures in {source.title}, by the cosine of their features: 1 is the "
        f"same to the encoder, and it sees the square in the middle that is shown here."
    )
    write_page(path, "Similar pictures", sentence, groups)
