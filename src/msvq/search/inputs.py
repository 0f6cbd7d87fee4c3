"""What every command over features starts from: an encoder, pictures, and places to write that hold nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.files import check_not_the_input, check_output_file
from msvq.data.sources import DataSettings, ImageSource, absolute, check_source, find_images, is_path
from msvq.data.sources.base import SplitName
from msvq.data.sources.folders import FileImages
from msvq.runs.encoder import LoadedEncoder
from msvq.runs.encoder_names import EncoderName, find_run, load_encoder, no_data
from msvq.runs.run_dir import RunDir


@dataclass(frozen=True)
class Inputs:
    """An encoder and some pictures, as the options of a command name them. No weights are read before `open`."""

    encoder: EncoderName
    data: str | None = None  # None: the run's own
    data_root: str | Path | None = None
    split: str = "all"  # or as training would split them
    download: bool = False
    checkpoint: str = "last"
    device: str | None = None
    precision: str | None = None
    backbone: str | None = None  # what the encoder's network is, where its files do not say or may not

    @cached_property
    def run(self) -> RunDir | None:
        """The run that the encoder is of, if it is named by its directory."""
        return find_run(self.encoder, backbone=self.backbone)

    @cached_property
    def own(self) -> DataSettings | None:
        """The run's own pictures; without a run others have to be named."""
        if self.run is None and self.data is None:
            raise no_data(self.encoder)
        return None if self.run is None else self.run.config.data

    def check_output(self, option: str, path: Path | None, endings: Sequence[str]) -> None:
        """Raise if a file, where one is wanted, cannot go there or would take the place of the pictures."""
        if path is not None:
            check_output_file(option, path, endings)
            check_not_the_input(option, path, self.data or ("" if self.own is None else self.own.source))

    def open(self, display: Display) -> tuple[LoadedEncoder, ImageSource]:
        """The encoder on its device, and the pictures, of which none is decoded yet."""
        if self.own is None and self.data is not None:
            check_source(self.data)  # before anything is fetched
        if isinstance(self.encoder, LoadedEncoder):  # to where it is to be
            encoder = load_encoder(self.encoder, self.checkpoint)
            device, precision = self.device or str(encoder.device), self.precision or encoder.precision
            return encoder.to(device, precision), self.open_source(display)
        encoder = load_encoder(self.run or self.encoder, self.checkpoint, backbone=self.backbone)
        if encoder.note:
            display.note(encoder.note)
        return encoder.to(self.device, self.precision), self.open_source(display)

    def open_source(self, display: Display | None = None) -> ImageSource:
        """The pictures alone."""
        split: SplitName | None = next((known for known in get_args(SplitName) if known == self.split), None)
        if split is None:
            raise unknown("split", self.split, get_args(SplitName))
        own, source = self.own, self.data
        if source is None:
            assert own is not None  # otherwise it was told that there is no data
            source = own.source
        elif own is not None and absolute(source) != own.source:
            own = None
        settings = DataSettings(
            source=source,
            root=Path(self.data_root) if self.data_root is not None else own.root if own else None,
            labels=own.labels if own else "auto",  # a run without labels holds no picture out
        )
        keep_all = split == "all" and is_path(settings.source)
        found = find_images(settings, download=self.download, display=display, keep_all=keep_all).split(split)
        if not len(found):
            way_out = "--split all takes those that there are"
            raise BadInput(f"there are no {split} pictures in {settings.source!r}; {way_out}")
        return found


def open_files(paths: Sequence[Path]) -> FileImages:
    """Single files as a source: they need not be in the one that is searched."""
    names, stamps = list(map(str, paths)), np.full((len(paths), 2), -1)
    return FileImages(origin="", root="", names=names, labels=stamps[:, 0], num_train=len(names), size_mtime=stamps)
