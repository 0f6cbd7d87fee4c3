"""A self-contained page of groups of pictures: what a search or another look at features found."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from msvq.core.files import write_text
from msvq.data.sources.base import ImageSource
from msvq.data.workers import Result
from msvq.report.pictures import data_address, shrink
from msvq.report.templates import resource, templates

ENDINGS = (".html", ".htm")
THUMBNAIL, QUALITY = 192, 82  # pixels: twice the width at which a phone shows them
SIDES = (THUMBNAIL, 128, 96, 64, 48, 32, 24, 16, 8)
PORTION = 16  # decoded by one worker at a time
SMALL = 64  # pictures of fewer pixels are shown with sharp ones


@dataclass(frozen=True)
class Thumbnail:
    """A picture in a data address; without one it could not be read."""

    address: str = ""
    small: bool = False


Thumbnails = dict[int, Thumbnail]  # by positions in a source


@dataclass(frozen=True)
class Card:
    """A picture on the page, and what stands below it."""

    position: int  # in the source; below 0: of a picture from elsewhere, whose thumbnail the page has under it
    name: str
    class_name: str = ""  # empty where unknown
    note: str = ""


@dataclass(frozen=True)
class Group:
    """Pictures that belong together, perhaps with the one that they are compared with."""

    title: str
    sentence: str
    cards: Sequence[Card]
    lead: Card | None = None


def make_thumbnails(source: ImageSource, positions: Iterable[int]) -> Thumbnails:
    """The centre squares of pictures, no larger than they are shown."""
    made: Thumbnails = {}
    wanted = list(dict.fromkeys(positions))
    sizes = dict(zip(wanted, source.shorter_sides(wanted), strict=True))
    for side in sorted({decoding_side(size) for size in sizes.values()}):
        chosen = [position for position in wanted if decoding_side(sizes[position]) == side]
        portions = [np.array(chosen[start : start + PORTION]) for start in range(0, len(chosen), PORTION)]
        with closing(source.decoded(portions, side)) as results:
            for portion, result in zip(portions, results, strict=True):
                for index, position in enumerate(portion.tolist()):
                    made[position] = _thumbnail(result, index, sizes[position])
    return made


def decoding_side(size: int) -> int:
    """One of a few sizes to decode at: not above the picture's own, so that a small one is not blown up."""
    return next((side for side in SIDES if side <= size), SIDES[-1] if size else SIDES[0])


def _thumbnail(result: Result, index: int, size: int) -> Thumbnail:
    if index in result.reasons:
        return Thumbnail()
    return Thumbnail(data_address(shrink(result.rows[index], THUMBNAIL), QUALITY), 0 < size < SMALL)


def positions_of(groups: Iterable[Group]) -> list[int]:
    """Positions of all pictures in some groups."""
    return [card.position for group in groups for card in (*group.cards, *([group.lead] if group.lead else []))]


def link_files(page: Path, files: Mapping[int, str]) -> dict[int, str]:
    """Addresses of files from a page, where they lie on one disk; relative, so that both may move together."""
    with suppress(ValueError):  # another drive
        near = {place: os.path.relpath(file, page.absolute().parent) for place, file in files.items()}
        return {place: quote(os.fsencode(PurePath(file).as_posix())) for place, file in near.items()}
    return {}


def write_page(
    path: Path,
    title: str,
    sentence: str,
    groups: Sequence[Group],
    thumbnails: Thumbnails,
    files: Mapping[int, str],
    *,
    notes: Sequence[str] = (),
    further: Mapping[int, Group] | None = None,
) -> None:
    """Write the page. Names are escaped, and nothing is fetched: it opens from disk without a network.

    A click on a picture leads to its group in `further`, if it has one there, else to its file, as its name does.
    """
    further = further or {}
    again = "".join(
        f'.p{place} {{ background-image: url("{thumbnails[place].address}"); }}\n'
        for place in dict.fromkeys(positions_of(further.values()))
    )
    facts = {"further": further, "links": link_files(path, files), "notes": notes}
    write_text(path, _render("page.html", title, sentence, groups, thumbnails, again, **facts))


def render_pictures(
    title: str, sentence: str, groups: Sequence[Group], thumbnails: Thumbnails, notes: Sequence[str]
) -> str:
    """The same as a piece of a page, for a notebook."""
    return _render("notebook.html", title, sentence, groups, thumbnails, notes=notes)


def _render(
    template: str,
    title: str,
    sentence: str,
    groups: Sequence[Group],
    thumbnails: Thumbnails,
    more_style: str = "",
    **more: object,
) -> str:
    style = resource("page.css") + resource("page.css", "search") + Markup(more_style)  # ours, and base64
    facts = {"title": title, "sentence": sentence, "groups": groups, "thumbnails": thumbnails, "style": style}
    return templates("search").get_template(template).render({**facts, **more})
