"""Commands that use an encoder: features to a file, similar pictures, near-duplicates."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from msvq.cli.options import Checkpoint, Device, Download, OwnBackbone, Root, RunPath, Source, Stopped, app
from msvq.core.console import Display

Split = Annotated[
    str, typer.Option(help="all pictures, or train or test as 'msvq pretrain' would split them.", metavar="NAME")
]
ExactPrecision = Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or auto. (default: fp32)")]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page with thumbnails, to open in a browser.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def _resumable() -> Iterator[None]:
    """An interruption tells how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped("finished parts are kept; the same command goes on", signal.SIGINT) from None


@app.command()
def embed(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="The file to write: .npz, .parquet or .csv.", show_default=False)],
    data: Source = None,
    data_root: Root = None,
    split: Split = "all",
    download: Download = False,
    checkpoint: Checkpoint = "last",
    device: Device = None,
    precision: ExactPrecision = None,
    backbone: OwnBackbone = None,
    batch_size: Annotated[
        int, typer.Option(help="Pictures at once, up to 1,024; on a CPU the features are the same for any.", min=1)
    ] = 256,
) -> None:
    """Write the features of all pictures to a file, with their names and labels.

    A command that was interrupted goes on when it is given again. Pictures that cannot be read are listed beside
    the file (photos.skipped.csv). Example: msvq embed runs/photos --data ~/photos --out photos.npz
    """
    from msvq.api import load
    from msvq.search.embedding import embed as run_embed
    from msvq.search.embedding import tell_skipped

    with _resumable():
        written = run_embed(
            load(run, backbone=backbone),
            out,
            data=data,
            data_root=data_root,
            split=split,
            download=download,
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            batch_size=batch_size,
            display=Display(Console(stderr=True)),
        )
    say = Display(Console()).note
    say(f"{written.num:,} pictures, {written.feature_dim:,} numbers each  {written.path}")
    if written.skipped:
        say(f"{tell_skipped(written.skipped)}  {written.skipped_path}")
    if written.parts is not None:
        say(f"the same command tries those again that could not be read now; all others are kept in {written.parts}")


@app.command()
def search(
    run: RunPath,
    query: Annotated[
        list[str],
        typer.Option(help="A picture to look for, or the name of one in the data. May be given again.", metavar="FILE"),
    ],
    data: Source = None,
    data_root: Root = None,
    split: Split = "all",
    download: Download = False,
    top: Annotated[int, typer.Option(help="How many pictures to show.", min=1)] = 20,
    html: Page = None,
    checkpoint: Checkpoint = "last",
    device: Device = None,
    precision: ExactPrecision = None,
    backbone: OwnBackbone = None,
    as_json: AsJson = False,
) -> None:
    """Find the pictures that are most like a query.

    The features of the data are kept, and brought up to date when pictures or the encoder change. Every picture is
    compared: nothing is approximated. Example: msvq search runs/photos --data ~/photos --query beach.jpg --html b.html
    """
    from msvq.api import load
    from msvq.search import showing
    from msvq.search.search import search as run_search

    with _resumable():
        found = run_search(
            load(run, backbone=backbone),
            query,
            data=data,
            data_root=data_root,
            split=split,
            download=download,
            top=top,
            html=html,
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            display=Display(Console(stderr=True)),
        )
    showing.show_search(found, Console(), html=html, as_json=as_json)


@app.command()
def duplicates(
    run: RunPath,
    data: Source = None,
    data_root: Root = None,
    split: Split = "all",
    download: Download = False,
    threshold: Annotated[
        float,
        typer.Option(
            help="Cosine of two features from which pictures count as the same; 1: equal pictures only. 0.98 leaves "
            "room for copies that were resized, saved again or cut a little; an encoder that was trained for a short "
            "time sees more as the same, and needs 0.99 or more."
        ),
    ] = 0.98,
    top: Annotated[int, typer.Option(help="How many groups to print; --out has all.", min=1)] = 20,
    out: Annotated[Path | None, typer.Option(help="Write all groups to this .csv file.")] = None,
    html: Page = None,
    checkpoint: Checkpoint = "last",
    device: Device = None,
    precision: ExactPrecision = None,
    backbone: OwnBackbone = None,
    as_json: AsJson = False,
) -> None:
    """Find pictures that are there more than once, as the encoder sees them.

    Every pair is compared by features, so a copy that was cropped, recoloured or turned a little may be found too.
    'msvq doctor' needs no encoder and compares pixels: it finds files that are equal or look equal at a small size.
    Example: msvq duplicates runs/photos --data ~/photos --out duplicates.csv
    """
    from msvq.api import load
    from msvq.search import showing
    from msvq.search.duplicates import find_duplicates

    with _resumable():
        found = find_duplicates(
            load(run, backbone=backbone),
            data=data,
            data_root=data_root,
            split=split,
            download=download,
            threshold=threshold,
            out=out,
            html=html,
            checkpoint=checkpoint,
            device=device,
            precision=precision,
            display=Display(Console(stderr=True)),
        )
    showing.show_duplicates(found, Console(), top=top, files=[path for path in (out, html) if path], as_json=as_json)
