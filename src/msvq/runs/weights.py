"""Weights of a run, from any of its checkpoints: the encoder that is judged, or the whole method."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from msvq.api import CARD, WEIGHTS, Run
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.user_code import is_user_code, must_be_named_explicitly
from msvq.methods import METHODS, Method
from msvq.methods.external import is_external, register_file
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.runs.checkpoint import BEST, LAST, PREVIOUS, read_checkpoint
from msvq.runs.encoder_card import Preprocessing, state_dict_mismatch


class LoadedEncoder(NamedTuple):
    """An encoder in eval mode, and where it came from."""

    encoder: nn.Module
    checkpoint: str  # "last", "best", or the name of a file
    step: int | None  # None where the file does not say
    backbone: BackboneSettings  # what the encoder was built by, and for training pictures of what size
    train_size: int
    of_run: bool  # whether the run's own training made them, so that its log tells of them


def load_encoder(run: Run, checkpoint: str = "last") -> LoadedEncoder:
    """The run's encoder: "last", "best" (by held-out pictures), or a file (.ckpt or .safetensors)."""
    path = checkpoint_path(run, checkpoint)
    own = _is_own(run, path)
    if own:  # the card belongs to the weights and is sealed; config.yaml anyone may edit
        backbone, size = BackboneSettings.model_validate(run.card["backbone"]), int(run.card["train_size"])
    else:
        backbone, size = run.config.backbone, trained_size(run)
    encoder = make_backbone(backbone, size)
    if path.suffix == ".safetensors":
        state = run.read_encoder() if own else _read_safetensors(path)
        step = max((line["step"] for line in run.metrics()), default=None) if own else None
    else:
        saved = read_state(path)
        _check_settings(run, saved, path, "backbone")
        state, step = encoder_state(saved), saved.get("step")
    _fill(encoder, state, path)
    name = checkpoint_name(run, checkpoint, path)
    of_run = own or path.resolve().parent == (run.path / "checkpoints").resolve()
    return LoadedEncoder(encoder.eval().requires_grad_(False), name, step, backbone.for_size(size), size, of_run)


def preprocessing_of(run: Run, checkpoint: str = "last") -> Preprocessing:
    """How to feed the encoder in a checkpoint: by the card that belongs to it, or by what the run began with."""
    if _is_own(run, checkpoint_path(run, checkpoint)):
        return Preprocessing.model_validate(run.card)
    begun = run.environment()
    if {"mean", "std"} <= begun.keys():
        facts = {"size": run.config.data.test_size or trained_size(run), "mean": begun["mean"], "std": begun["std"]}
    elif (run.path / CARD).is_file():  # of a run from before environment.json said it
        facts = run.card
    else:
        raise BadInput(f"{run.path} does not say how its pictures are normalised; finish the run with --resume")
    try:
        return Preprocessing.model_validate(facts)
    except ValidationError:
        raise BadInput(f"{run.path / 'environment.json'} is damaged; restore it, or start the run anew") from None


def load_method(run: Run, checkpoint: str = "last", *, method: str | None = None) -> tuple[Method, str, int]:
    """The run's whole method with teachers and queues, the checkpoint's name and its step.

    `method`: the file of a method of one's own, which is run only because it is named here.
    """
    name = run.config.method_name
    if is_external(name):
        if method is None:
            raise must_be_named_explicitly("method", name)
        register_file(method)
        name = method
    elif method is not None and method != name:
        raise BadInput(f"the run is of method {name}, not {method}; leave out --method")
    path = checkpoint_path(run, checkpoint, whole=True)
    saved = read_state(path)
    _check_settings(run, saved, path, "backbone", "method")
    backbone = make_backbone(run.config.backbone, trained_size(run))
    built = METHODS[name](backbone, **run.config.method_options)
    _fill(built, saved["method"], path)
    return built, checkpoint_name(run, checkpoint, path), int(saved.get("step", 0))


def checkpoint_name(run: Run, checkpoint: str, path: Path) -> str:
    """What a checkpoint is called in results: that of another run never takes the name of one's own."""
    if checkpoint in ("last", "best"):
        return checkpoint
    place = path.resolve()
    if _is_own(run, path):
        return "last"
    if place.parent == (run.path / "checkpoints").resolve():
        return place.stem
    return f"{place.stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:6]}"


def checkpoint_path(run: Run, checkpoint: str, *, whole: bool = False) -> Path:
    """The file that a name of a checkpoint means. `whole`: with teachers and queues, not the encoder alone."""
    folder = run.path / "checkpoints"
    if checkpoint == "best":
        if not (folder / BEST).is_file():
            raise BadInput(
                f"{run.path} has no best checkpoint, which takes labels of which some are held out "
                f"(evaluate.validation); use --checkpoint last"
            )
        return folder / BEST
    if checkpoint == "last":
        finished = run.path / WEIGHTS
        if finished.is_file() and (run.path / CARD).is_file() and not whole:  # a kill may come between the two
            return finished
        found = [folder / name for name in (LAST, PREVIOUS) if (folder / name).is_file()]
        if not found:
            raise BadInput(f"{run.path} has no encoder yet; finish the run with --resume")
        return found[0]
    path = expanduser(checkpoint)
    if not path.is_file():
        raise BadInput(f"there is no checkpoint {checkpoint!r}; give last, best or the path of a file")
    if path.suffix not in (".ckpt", ".safetensors"):
        raise BadInput(f"{checkpoint!r} is no checkpoint: it is a .ckpt of a run or a .safetensors of an encoder")
    if whole and path.suffix == ".safetensors":
        raise BadInput(f"{checkpoint!r} holds an encoder alone; teachers and queues are in a run's .ckpt files")
    return path


def _is_own(run: Run, path: Path) -> bool:
    """Whether these are the weights that the run's card was written for."""
    return path.resolve() == (run.path / WEIGHTS).resolve()


def read_state(path: Path) -> dict[str, Any]:
    """A checkpoint's content."""
    saved = read_checkpoint(path)
    method = None if saved is None else saved.get("method")
    if saved is None or not isinstance(method, dict) or not all(isinstance(v, torch.Tensor) for v in method.values()):
        raise BadInput(f"{str(path)!r} is damaged, or no checkpoint of msvq; take another with --checkpoint")
    return saved


def encoder_state(saved: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The encoder's part of a checkpoint, whatever the method: the checkpoint says what it begins with."""
    prefix, method = str(saved.get("encoder", "student.backbone.")), saved["method"]
    return {name.removeprefix(prefix): value for name, value in method.items() if name.startswith(prefix)}


def trained_size(run: Run) -> int:
    """The side of the crops that the run was trained on."""
    size = run.config.data.size
    if size is None:
        raise BadInput(f"{run.path} was never begun: its config.yaml does not say at which size it is trained")
    return size


def _check_settings(run: Run, saved: dict[str, Any], path: Path, *sections: str) -> None:
    """Raise if a checkpoint has another network than `config.yaml` says, which anyone may edit."""
    recorded, written = saved.get("record", {}).get("settings"), run.config.model_dump(mode="json")
    if not isinstance(recorded, dict):
        return
    for section in sections:
        old, new = recorded.get(section, {}), written[section]
        for key in old | new:
            both_code = is_user_code(str(old.get(key))) and is_user_code(str(new.get(key)))  # it may have moved
            if old.get(key) != new.get(key) and not (section == "backbone" and both_code):
                raise BadInput(
                    f"{str(path)!r} is of another network than the run's: its {section}.{key} is {old.get(key)!r}, and "
                    f"config.yaml says {new.get(key)!r}; give a checkpoint of this run, or restore its config.yaml"
                )


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise BadInput(f"{str(path)!r} is damaged, or no safetensors file; take another with --checkpoint") from None


def _fill(module: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load weights, or say what of them does not fit."""
    own = module.state_dict()
    taken = {name: state[name] for name in own if name in state}
    what = state_dict_mismatch(own, taken)
    if what:
        raise BadInput(f"{str(path)!r} is of another network than the run's: {what}; give a checkpoint of this run")
    module.load_state_dict(taken)
