"""The application, and the options that several commands have."""

import inspect
import re
from pathlib import Path
from typing import Annotated

import typer


class Stopped(Exception):
    """A person stopped a command; KeyboardInterrupt itself typer would swallow."""

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.signal_number = signal_number


def reflowed(text: str) -> str:
    """A docstring to be broken anew at the width of a terminal: an example begins a line, nothing else does."""
    joined = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))
    return re.sub(r" (Examples?: |or: msvq )", r"\n\1", joined)


app = typer.Typer(
    name="msvq",
    help="Learn an image encoder from unlabelled pictures, and see whether it worked.",
    epilog="Start with: msvq demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
Checkpoint = Annotated[str, typer.Option(help="last, best (by held-out pictures), or the path of a file.")]
Source = Annotated[
    str | None, typer.Option("--data", help="What 'msvq pretrain --data' takes. (default: the run's own data)")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch the named data set if it is not there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsJsonNotText = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ExactPrecision = Annotated[str | None, typer.Option(help="fp32, bf16, fp16 or auto. (default: fp32)")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data. (default: the recipe's)")]
Recipe = Annotated[
    str | None, typer.Option(help="Name of a recipe or a YAML file of settings. (default: the data set's own)")
]
Data = Annotated[
    str | None, typer.Option(help="What 'msvq pretrain --data' takes. (default: the recipe's, or patterns)")
]
Root = Annotated[Path | None, typer.Option(help="Where the named data set is.")]
MethodName = Annotated[
    str | None, typer.Option(help="Name of a method, or path/to/file.py:ClassName. (default: the recipe's)")
]
BackboneName = Annotated[
    str | None,
    typer.Option(
        help="resnet18, resnet34, resnet50, torchvision:NAME, timm:NAME, or path/to/file.py:function. "
        "(default: the recipe's)"
    ),
]
OwnBackbone = Annotated[
    str | None,
    typer.Option("--backbone", help="path/to/file.py:function, if the run's backbone is code of your own."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: key.path=value. May be given again.", metavar="KEY=VALUE"),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps ... (default: auto)")]
PrecisionName = Annotated[str | None, typer.Option(help="As for 'msvq pretrain'. (default: auto)")]
