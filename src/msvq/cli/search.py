"""Commands that use an encoder: features to a file, similar pictures, exports for other tools."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from msvq.cli import options as opt
from msvq.cli.options import app, resumable
from msvq.core.console import Display, counted, printable

if TYPE_CHECKING:
    from msvq.search.inputs import Inputs
    from msvq.search.search import Searched

Split = Annotated[
    str, Option(help="all pictures, or train or test as 'msvq pretrain' would split them.", metavar="NAME")
]
Page = Annotated[Path | None, Option("--html", help="Write a page with thumbnails, to open in a browser.")]


def open_inputs(
    encoder: opt.EncoderName,
    data: opt.Source = None,
    data_root: opt.Root = None,
    split: Split = "all",
    download: opt.Download = False,
    checkpoint: opt.Checkpoint = "last",
    device: opt.Device = None,
    precision: opt.ExactPrecision = None,
    backbone: opt.EncoderBackbone = None,
) -> "Inputs":
    """An encoder and pictures, by the options that all of these commands have."""
    from msvq.search.inputs import Inputs

    return Inputs(
        encoder=encoder,
        data=data,
        data_root=data_root,
        split=split,
        download=download,
        checkpoint=checkpoint,
        device=device,
        precision=precision,
        backbone=backbone,
    )


def over_inputs(command: Callable[..., None], *, last: Sequence[inspect.Parameter] = ()) -> Callable[..., None]:
    """Register a command that is given `inputs`: the options of `open_inputs` stand behind its own, before `last`."""
    shared = dict(inspect.signature(open_inputs).parameters)
    own = {name: one for name, one in inspect.signature(command).parameters.items() if name != "inputs"}
    parameters = [shared["encoder"], *own.values(), *list(shared.values())[1:], *last]

    def work(**given: Any) -> None:
        with resumable():
            command(inputs=open_inputs(**{name: given.pop(name) for name in shared}), **given)

    # Typer and the reference read options from these.
    work.__name__, work.__doc__, work.__module__ = command.__name__, command.__doc__, command.__module__
    ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    work.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    work.__annotations__ = {one.name: one.annotation for one in parameters}
    app.command()(work)
    return work


@over_inputs
def embed(
    inputs: "Inputs",
    out: Annotated[Path, Option(help="The file to write: .npz, .parquet or .csv.", show_default=False)],
    batch_size: Annotated[
        int, Option(help="Pictures at once, up to 1,024; on a CPU the features are the same for any.", min=1)
    ] = 256,
    pictures: Annotated[
        bool,
        Option(
            "--pictures", help="Put thumbnails, a map and neighbours into a .parquet file too, to look at in a viewer."
        ),
    ] = False,
) -> None:
    """Write the features of all pictures to a file, with their names and labels.

    A command that was interrupted goes on when it is given again. Pictures that cannot be read are listed beside
    the file (photos.skipped.csv). Example: msvq embed runs/photos --data ~/photos --out photos.npz
    or: msvq embed runs/photos --data ~/photos --out photos.parquet --pictures
    """
    from msvq.search import embedding

    display = Display(Console(stderr=True))
    written = embedding.embed(inputs, out, pictures=pictures, batch_size=batch_size, display=display)
    say = Display(Console()).note
    say(f"{counted(written.num, 'picture')}, {written.feature_dim:,} numbers each  {out}")
    if written.skipped:
        say(f"{tell_skipped(written.skipped)}  {written.skipped_path}")
    if written.try_again:
        say("the same command tries those again that could not be read now; the features of all others are kept")


@over_inputs
def search(
    inputs: "Inputs",
    query: Annotated[
        list[str],
        Option(help="A picture to look for, or the name of one in the data; or several: --query *.jpg", metavar="FILE"),
    ],
    more: Annotated[list[str] | None, Argument(metavar="[FILE]...", hidden=True)] = None,
    top: Annotated[int, Option(help="How many pictures to show.", min=1)] = 20,
    out: Annotated[Path | None, Option(help="Write all rows to this .csv or .json file.")] = None,
    html: Page = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the pictures that are most like a query.

    The features of the data are kept, and brought up to date when pictures or the encoder change. Every picture is
    compared: nothing is approximated. Example: msvq search runs/photos --data ~/photos --query beach.jpg --html b.html
    """
    from msvq.search import search as searching

    display = Display(Console(stderr=True))
    found = searching.search(inputs, [*query, *(more or [])], top=top, out=out, html=html, display=display)
    if as_json:
        typer.echo(json.dumps(_search_record(found), indent=1))
    else:
        _show_search(found, [out, html])


def _search_record(found: "Searched") -> dict[str, object]:
    answers = [
        {
            "query": answer.query,
            "found": [
                {"rank": rank, "similarity": hit.similarity, "class": hit.class_name or None, "name": hit.name}
                for rank, hit in enumerate(answer.hits, start=1)
            ],
        }
        for answer in found.answers
    ]
    return {"pictures": found.num_pictures, "skipped": len(found.skipped), "answers": answers}


def _show_search(found: "Searched", files: Sequence[Path | None]) -> None:
    """Print a table per query: rank, cosine, class where it is known, and name."""
    say = Display(Console()).note
    for answer in found.answers:
        say(f"most like {answer.query}, of {found.num_pictures:,} pictures")
        hits = enumerate(answer.hits, start=1)
        rows = [(str(rank), f"{hit.similarity:.3f}", hit.class_name, hit.name) for rank, hit in hits]
        show_table(("", "cosine", "class", "picture"), rows)
        say("")
    for path in filter(None, files):
        say(f"written  {path}")
    if found.skipped:
        say(tell_skipped(found.skipped))


@app.command()
def export(
    encoder: opt.EncoderName,
    out: Annotated[
        Path | None, Option(help="Folder to write; it must be new or empty. (default: none, with --push alone)")
    ] = None,
    format: Annotated[
        str,
        Option(
            help="safetensors: weights, and code that reads them; torchvision, timm: for those libraries; hf: for "
            "the Hugging Face hub; onnx: for ONNX Runtime and others; torchscript: for torch.jit.load."
        ),
    ] = "safetensors",
    checkpoint: opt.Checkpoint = "last",
    licence: Annotated[
        str, Option("--licence", "--license", help="Licence of the weights, for the model card, such as mit.")
    ] = "unknown",
    backbone: opt.EncoderBackbone = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an earlier export.")] = False,
    push: Annotated[
        str | None,
        Option(
            help="Send the folder to this model on the Hugging Face hub, with the login of 'hf auth login'.",
            metavar="OWNER/NAME",
        ),
    ] = None,
) -> None:
    """Write an encoder for other tools, with its preprocessing, a model card and an example.

    It is loaded back by its own library in a fresh process first: no feature may differ by more than 0.0001.
    Example: msvq export runs/cifar10 --format onnx --out cifar10-onnx
    """
    from msvq.export.exporting import export_encoder

    done = export_encoder(
        encoder,
        format=format,
        out=out,
        checkpoint=checkpoint,
        backbone=backbone,
        licence=licence,
        overwrite=overwrite,
        push=push,
        display=Display(Console(stderr=True)),
    )
    say = Display(Console()).note
    largest, allowed = done.max_abs_difference, done.manifest["checked"]["tolerance"]
    say(f"{format}: features differ from the encoder's by at most {largest:.2g} (allowed: {allowed:.2g})")
    if out is not None:
        say(f"export  {done.path}")
    if push is not None:
        say(f"sent    hf:{push}")


def show_table(titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print aligned lines; a column without entries is left out, and the last is as long as it needs to be."""
    used = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    cells = [[printable(row[c]).replace("\n", "\\n").replace("\t", "\\t") for c in used] for row in [titles, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(used))]
    say = Display(Console()).note
    for row in cells:
        say("  ".join(["", *map(str.ljust, row, [*widths[:-1], 0])]))


def tell_skipped(skipped: Sequence[tuple[str, str]]) -> str:
    """How many pictures were left out and why, in short."""
    kinds = Counter(reason.partition(":")[0] for _, reason in skipped)
    why = ", ".join(f"{count:,} {reason!r}" for reason, count in kinds.most_common(3))
    more = f" and {len(kinds) - 3} other reasons" if len(kinds) > 3 else ""
    return f"{len(skipped):,} left out: {why}{more}"
