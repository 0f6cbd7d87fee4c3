"""What every command over features starts from: an encoder, pictures, and places to write that hold nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.files import check_not_the_input, check_output_file
from msvq.data.sources import DataSettings, ImageSource, absolute, find_images, is_path
from msvq.data.sources.base import SplitName
from msvq.data.sources.folders import FileImages
from msvq.runs.encoder import LoadedEncoder, load_encoder
from msvq.runs.run_dir import RunDir


@dataclass(frozen=True)
class Inputs:
    """A run's encoder and some pictures, as the options of a command name them. Nothing is read before `open`."""

    run: RunDir
    data: str | None = None  # None: the run's own
    data_root: str | Path | None = None
    split: str = "all"  # or as training would split them
    download: bool = False
    checkpoint: str = "last"
    device: str | None = None
    precision: str | None = None

    def check_output(self, option: str, path: Path | None, endings: Sequence[str]) -> None:
        """Raise if a file, where one is wanted, cannot go there or would take the place of the pictures."""
        if path is not None:
            check_output_file(option, path, endings)
            check_not_the_input(option, path, self.data or self.run.config.data.source)

    def open(self, display: Display) -> tuple[LoadedEncoder, ImageSource]:
        """The encoder on its device, and the pictures, of which none is decoded yet."""
        encoder = load_encoder(self.run, self.checkpoint).to(self.device, self.precision)
        return encoder, self.open_source(display)

    def open_source(self, display: Display | None = None) -> ImageSource:
        """The pictures alone."""
        split: SplitName | None = next((known for known in get_args(SplitName) if known == self.split), None)
        if split is None:
            raise unknown("split", self.split, get_args(SplitName))
        own = self.run.config.data
        is_own = self.data is None or absolute(self.data) == own.source
        given_root = None if self.data_root is None else Path(self.data_root)
        settings = DataSettings(
            source=own.source if self.data is None else self.data,
            root=given_root or (own.root if is_own else None),
            labels=own.labels if is_own else "auto",  # a run without labels holds no picture out
        )
        keep_all = split == "all" and is_path(settings.source)
        source = find_images(settings, download=self.download, display=display, keep_all=keep_all).split(split)
        if not len(source):
            way_out = "--split all takes those that there are"
            raise BadInput(f"there are no {split} pictures in {settings.source!r}; {way_out}")
        return source


def open_files(paths: Sequence[Path]) -> FileImages:
    """Single files as a source: they need not be in the one that is searched."""
    num = len(paths)
    return FileImages(
        origin="",
        root="",
        names=list(map(str, paths)),
        labels=np.full(num, -1),
        num_train=num,
        size_mtime=np.full((num, 2), -1),
    )
