"""A run that goes on: how it is asked for, and what it is checked against, its checkpoint."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from torch import nn

from msvq.config.adapt import fill_from_method, fill_from_run
from msvq.config.resolve import LENGTH, read_config
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import FINISHED, is_run, write_text
from msvq.core.launch import is_main_process, num_processes
from msvq.core.ordinary_files import read_ordinary
from msvq.core.schema import Change, MayChange, diff
from msvq.core.user_code import is_user_code
from msvq.data.sources import is_path
from msvq.data.store import ImageDataset
from msvq.runs.checkpoint import BEST, LAST, PREVIOUS, checked_load, load_checkpoint
from msvq.runs.encoder import state_dict_mismatch
from msvq.runs.run_dir import WEIGHTS

Mode = Literal["new", "resume", "auto", "overwrite"]


def chosen_mode(*, resume: bool, auto_resume: bool, overwrite: bool) -> Mode:
    """What is to be done about a run that may be there already."""
    if (resume or auto_resume) and overwrite:
        raise BadInput("--resume continues a run and --overwrite replaces it; give one of them")
    return "auto" if auto_resume else "resume" if resume else "overwrite" if overwrite else "new"


def mode_for(out: Path, mode: Mode) -> Mode:
    """What "auto" comes to: a run that has a checkpoint goes on, one that has nothing to lose is begun again."""
    if mode != "auto":
        return mode
    return "resume" if has_checkpoint(out) else "overwrite" if has_nothing_to_lose(out) else "new"


class Saved(NamedTuple):
    """A run to go on with."""

    path: Path
    state: dict[str, Any]  # the checkpoint
    settings: Settings  # what the checkpoint was trained with

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end, and judged."""
        whole = all((self.path / name).is_file() for name in FINISHED)
        return bool(whole and self.state["step"] == self.state["total_steps"])

    def same_training_as(self, asked: Settings) -> bool:
        """Whether these settings ask for the training that it has had."""
        asked = fill_from_run(asked, self.settings)
        changed = changes_on_resume(self.settings, asked)
        other = any(change.may_change is None or change.path in LENGTH for change in changed)
        return not other and self.settings.data.source == asked.data.source


def has_checkpoint(out: Path) -> bool:
    """Whether there is something to go on from."""
    return is_run(out) and any((out / "checkpoints" / name).is_file() for name in (LAST, PREVIOUS))


def has_nothing_to_lose(out: Path) -> bool:
    """Whether a run was started there and killed before it had anything to lose."""
    return is_run(out) and not any((out / name).exists() for name in (WEIGHTS, "report.html", f"checkpoints/{BEST}"))


def invalidate_results(out: Path) -> None:
    """Remove what only a finished run has, before it is trained on, so that it is not taken for the new result."""
    if is_main_process():
        for name in ("report.html", *reversed(FINISHED)):
            (out / name).unlink(missing_ok=True)


def open_saved(out: Path, display: Display) -> Saved:
    """The run to continue, from its newest whole checkpoint; what `config.yaml` says must agree with it."""
    if not (out / "config.yaml").is_file():
        raise BadInput(f"there is no run to resume in {str(out)!r}; leave out --resume to start one")
    written = read_config(out / "config.yaml")
    state = load_checkpoint(out / "checkpoints", lambda sentence: display.note(f"warning: {sentence}"))
    with checked_load(out / "checkpoints", {"total_steps": 0, "record": {"settings": {}}, "method": {}}, state):
        begun = state["record"]["settings"]
    try:
        settings = Settings.model_validate(begun)
    except ValidationError:
        raise BadInput(
            f"the checkpoints in {str(out)!r} are of another version of msvq; continue with that one, or start anew"
        ) from None
    changed = changes_on_resume(settings, written)
    for change in changed:
        if change.may_change is None:
            raise BadInput(
                f"config.yaml does not belong to the checkpoint, it has another {change.path}: the run has "
                f"{change.old!r}, not {change.new!r}; put it right, or start anew with --overwrite"
            )
    ignored = [change.path for change in changed if change.may_change is not MayChange.PLACE]
    if ignored:
        display.note(
            f"note: config.yaml has another {', '.join(ignored)} than the checkpoint, which counts; "
            f"give the flag to change it"
        )
    place = {key: getattr(written.data, key) for key in ("source", "root", "mode", "workers")}  # where the data is now
    return Saved(out, state, settings.model_copy(update={"data": settings.data.model_copy(update=place)}))


def changes_on_resume(saved: Settings, now: Settings) -> list[Change]:
    """What differs between a run and its continuation.

    A folder may have moved: whether its pictures are the same is for the caller to check. So may a file of code.
    """
    saved, now = fill_from_method(saved), fill_from_method(now)
    moved: set[str] = set()
    if is_path(saved.data.source) and is_path(now.data.source):
        moved.add("data.source")
    if is_user_code(saved.backbone.name) and is_user_code(now.backbone.name):
        moved.add("backbone.name")
    return [change for change in diff(saved, now) if change.path not in moved]


def check_and_record_resume(saved: Saved, settings: Settings, data: ImageDataset, method: nn.Module) -> None:
    """Check that a run may go on like this, and write down what has changed."""
    changes = changes_on_resume(saved.settings, settings)
    for change in changes:
        if change.may_change is None:
            raise BadInput(
                f"cannot resume with another {change.path}: the run has {change.old!r}, not {change.new!r}; "
                f"leave the flag out, or start a new run in another --out"
            )
    changed = {c.path: [c.old, c.new] for c in changes if c.may_change is not MayChange.PLACE}
    what = state_dict_mismatch(method.state_dict(), saved.state["method"])
    if what:
        raise BadInput(
            f"the checkpoint in {str(saved.path)!r} does not fit the method and backbone as they are now: {what}; "
            f"restore their code, or start a new run in another --out"
        )
    begun = saved.state["record"].get("data_fingerprint")
    if begun is not None and begun != data.fingerprint:
        raise BadInput(
            f"the pictures of {data.name} have changed since the run began, so it cannot be continued exactly; "
            f"restore them, or start a new run in another --out"
        )
    for path in LENGTH:
        old, new = changed.get(path, [0, 0])
        old = saved.state["step"] if old is None else old  # a run of epochs has no number of steps but those it made
        if new is not None and new < old:
            raise BadInput(
                f"cannot resume with fewer {path.removeprefix('train.')}: the run has {old}, not {new}; "
                f"leave the flag out, or start a new run in another --out"
            )
    environment = saved.path / "environment.json"
    if environment.is_file():
        try:
            known = dict(json.loads(read_ordinary(environment)))
            resumed = list(known.get("resumed", []))
        except (ValueError, TypeError, RecursionError):
            raise BadInput(f"{environment} is damaged; restore it, or remove it to go on without") from None
        before = known.get("processes", 1)
        if before != num_processes():
            changed["processes"] = [before, num_processes()]
            known["processes"] = num_processes()
        if changed:
            known["resumed"] = [*resumed, {"step": saved.state["step"], "changed": changed}]
            write_text(environment, json.dumps(known, indent=2) + "\n")
    write_text(saved.path / "config.yaml", settings.to_yaml())
