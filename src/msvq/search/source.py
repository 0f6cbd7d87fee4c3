"""The pictures that a command is to embed."""

from pathlib import Path
from typing import get_args

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.data.sources import DataSettings, ImageSource, absolute, find_images, is_path
from msvq.data.sources.base import SplitName
from msvq.runs.run_dir import RunDir


def open_source(
    run: RunDir,
    data: str | None,
    data_root: str | Path | None = None,
    *,
    split: str = "all",
    download: bool = False,
    display: Display | None = None,
) -> ImageSource:
    """The pictures that `--data` names (None: the run's own): all of them, or a split as training would see it."""
    name: SplitName | None = next((known for known in get_args(SplitName) if known == split), None)
    if name is None:
        raise unknown("split", split, get_args(SplitName))
    own = data is None or absolute(data) == run.config.data.source
    root = Path(data_root) if data_root is not None else run.config.data.root if own else None
    settings = DataSettings(source=run.config.data.source if data is None else data, root=root)
    if own:  # a run without labels holds no picture out
        settings = settings.model_copy(update={"labels": run.config.data.labels})
    keep_all = split == "all" and is_path(settings.source)
    source = find_images(settings, download=download, display=display, keep_all=keep_all).split(name)
    if not len(source):
        raise BadInput(f"there are no {split} pictures in {settings.source!r}; --split all takes those that there are")
    return source
