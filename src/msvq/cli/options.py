"""The application, and the options that several commands have."""

import inspect
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from msvq.core.errors import BadInput


class Stopped(Exception):
    """A person stopped a command; KeyboardInterrupt itself typer would swallow."""

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.signal_number = signal_number


@contextmanager
def resumable() -> Iterator[None]:
    """An interruption tells how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        told = str(stop) or "finished parts are kept"
        raise Stopped(f"{told}; the same command goes on", getattr(stop, "signal_number", signal.SIGINT)) from None


def reflowed(text: str) -> str:
    """A docstring to be broken anew at the width of a terminal: an example begins a line, nothing else does."""
    joined = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))
    return re.sub(r" (Examples?: |or: msvq )", r"\n\1", joined)


def one_source(pictures: str | None, data: str | None) -> str | None:
    """The pictures that a command was given, by their place or by --data."""
    if pictures is not None and data is not None:
        raise BadInput(f"{pictures!r} and --data {data!r} are two sets of pictures; give one of them")
    return pictures if data is None else data


app = typer.Typer(
    name="msvq",
    help="Learn an image encoder from unlabelled pictures, and see whether it worked.",
    epilog="Start with: msvq demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

RunPath = Annotated[Path, Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
EncoderName = Annotated[
    str,
    Argument(
        metavar="ENCODER",
        help="Directory of a run; or timm:NAME, torchvision:NAME (behind it @random: untrained), a file of weights, a "
        "folder of 'msvq export', hf:OWNER/NAME, or a name that 'msvq pretrained' lists.",
        show_default=False,
    ),
]
Checkpoint = Annotated[str, Option(help="Of a run: last, best (by held-out pictures), or the path of a file.")]
Source = Annotated[
    str | None, Option("--data", help="What 'msvq pretrain --data' takes. (default: the run's own data)")
]
Download = Annotated[bool, Option("--download", help="Fetch the named data set if it is not there.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
AsJsonNotText = Annotated[bool, Option("--json", help="Print JSON instead of text.")]
ExactPrecision = Annotated[str | None, Option(help="fp32, bf16, fp16 or auto. (default: fp32)")]
Epochs = Annotated[int | None, Option(help="Passes over the data. (default: the recipe's)")]
Budget = Annotated[
    str | None,
    Option(
        help="The time there is, such as 90s, 10m or 2h: network, crops and steps are fitted to it and to this "
        "machine. (default: 20m for a folder, unless --epochs or --recipe is given)",
        metavar="TIME",
    ),
]
Recipe = Annotated[
    str | None,
    Option(
        help="Name of a recipe or a YAML file of settings. (default: the data set's own; fast with a budget; folder "
        "for your own pictures with --epochs)"
    ),
]
Pictures = Annotated[
    str | None, Argument(metavar="[PICTURES]", help="The same as --data, without the word.", show_default=False)
]
Data = Annotated[str | None, Option(help="What 'msvq pretrain --data' takes. (default: the recipe's, or patterns)")]
Root = Annotated[Path | None, Option(help="Where the named data set is.")]
MethodName = Annotated[
    str | None, Option(help="Name of a method, or path/to/file.py:ClassName. (default: the recipe's)")
]
BackboneName = Annotated[
    str | None,
    Option(
        help="resnet8, resnet14, resnet18, resnet34, resnet50, torchvision:NAME, timm:NAME, or "
        "path/to/file.py:function. (default: the recipe's)"
    ),
]
Init = Annotated[
    str | None,
    Option(
        help="Weights that the backbone starts from: a file (.safetensors, .pth), the directory of a run or of an "
        "export, timm:NAME, torchvision:NAME, hf:OWNER/NAME, a name of 'msvq pretrained', or 'library': the "
        "trained weights of --backbone, from the network. (default: fresh ones)"
    ),
]
OwnBackbone = Annotated[
    str | None, Option("--backbone", help="path/to/file.py:function, if the run's backbone is code of your own.")
]
EncoderBackbone = Annotated[
    str | None,
    Option(
        "--backbone",
        help="The network that a file of weights is of, where it does not tell: resnet18, timm:NAME ...; or "
        "path/to/file.py:function, if it is code of your own.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    Option("--set", help="Override a setting: key.path=value. May be given again.", metavar="KEY=VALUE"),
]
Device = Annotated[str | None, Option(help="auto, cpu, cuda, cuda:1, mps ... (default: auto)")]
PrecisionName = Annotated[str | None, Option(help="As for 'msvq pretrain'. (default: auto)")]
