"""What a run that goes on is checked against: its checkpoint, which says what it was begun with."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from torch import nn

from msvq.card import misfit
from msvq.completion import check_unchanged, with_findings
from msvq.config import Settings, read_config
from msvq.data.store import DataSet
from msvq.display import Display
from msvq.errors import BadInput
from msvq.files import write_text
from msvq.launch import is_first, num_processes
from msvq.run_files import is_run
from msvq.train.checkpoint import LAST, PREVIOUS, load_checkpoint, whole_state


class Saved(NamedTuple):
    """A run to go on with."""

    path: Path
    state: dict[str, Any]  # the checkpoint
    settings: Settings  # what the checkpoint was trained with

    @property
    def finished(self) -> bool:
        """Whether it was trained to its end and has left everything that a run leaves."""
        whole = all((self.path / name).is_file() for name in ("encoder.safetensors", "encoder.json", "report.html"))
        return bool(whole and self.state["step"] == self.state["total_steps"])

    def learns_the_same(self, asked: Settings) -> bool:
        """Whether these settings ask for the training that it has had."""
        asked = with_findings(asked, self.settings)
        try:
            changed = check_unchanged(self.settings, asked)
        except BadInput:
            return False
        return "train.epochs" not in changed and self.settings.data.source == asked.data.source


def has_checkpoint(out: Path) -> bool:
    """Whether there is something to go on from."""
    return is_run(out) and any((out / "checkpoints" / name).is_file() for name in (LAST, PREVIOUS))


def barely_begun(out: Path) -> bool:
    """Whether a run was started there and killed before it had anything to lose."""
    kept = ("encoder.safetensors", "report.html", "checkpoints/best.ckpt")
    return is_run(out) and not any((out / name).exists() for name in kept)


def withdraw(out: Path) -> None:
    """Remove what only a finished run has, before it is trained on: nothing shall pass for the new result."""
    if is_first():
        for name in ("report.html", "encoder.json", "encoder.safetensors"):
            (out / name).unlink(missing_ok=True)


def open_saved(out: Path, display: Display) -> Saved:
    """The run to continue, from its newest whole checkpoint; what `config.yaml` says must agree with it."""
    if not (out / "config.yaml").is_file():
        raise BadInput(f"there is no run to resume in {str(out)!r}; leave out --resume to start one")
    written = read_config(out / "config.yaml")
    state = load_checkpoint(out / "checkpoints", lambda sentence: display.note(f"warning: {sentence}"))
    with whole_state(out / "checkpoints", {"total_steps": 0, "record": {"settings": {}}, "method": {}}, state):
        begun = state["record"]["settings"]
    try:
        settings = Settings.model_validate(begun)
    except ValidationError:
        raise BadInput(
            f"the checkpoints in {str(out)!r} are of another version of msvq; continue with that one, or start anew"
        ) from None
    ignored = disagreements(settings, written)
    if ignored:
        display.note(
            f"note: config.yaml has another {', '.join(ignored)} than the checkpoint, which counts; "
            f"give the flag to change it"
        )
    place = {key: getattr(written.data, key) for key in ("source", "root", "mode", "workers")}  # where the data is now
    return Saved(out, state, settings.model_copy(update={"data": settings.data.model_copy(update=place)}))


def disagreements(settings: Settings, written: Settings) -> list[str]:
    """What `config.yaml` has otherwise and may have so; raise if it is of another run."""
    try:
        return list(check_unchanged(settings, written))
    except BadInput as error:
        reason = str(error).partition(": ")[2].partition(";")[0]
        what = str(error).partition("another ")[2].partition(":")[0]
        raise BadInput(
            f"config.yaml does not belong to the checkpoint, it has another {what}: {reason}; "
            f"put it right, or start anew with --overwrite"
        ) from None


def go_on(saved: Saved, settings: Settings, data: DataSet, method: nn.Module) -> None:
    """Check that a run may go on like this, and write down what has changed."""
    changed = check_unchanged(saved.settings, settings)
    what = misfit(method.state_dict(), saved.state["method"])
    if what:
        raise BadInput(
            f"the checkpoint in {str(saved.path)!r} does not fit the method and backbone as they are now: {what}; "
            f"restore their code, or start a new run in another --out"
        )
    begun = saved.state["record"].get("data_fingerprint")
    if begun is not None and begun != data.fingerprint():
        raise BadInput(
            f"the pictures of {data.name} have changed since the run began, so it cannot be continued exactly; "
            f"restore them, or start a new run in another --out"
        )
    epochs = changed.get("train.epochs", [0, 0])
    if epochs[1] < epochs[0]:
        raise BadInput(
            f"cannot resume with fewer epochs: the run has {epochs[0]}, not {epochs[1]}; "
            f"leave the flag out, or start a new run in another --out"
        )
    environment = saved.path / "environment.json"
    if environment.is_file():
        try:
            known = dict(json.loads(environment.read_text(encoding="utf-8")))
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
