"""An encoder, with how to feed it and where it came from; and a run's: its files, and how it is loaded from them."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, FiniteFloat, PositiveInt, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save
from torch import Tensor, nn

from msvq.config.settings import Settings
from msvq.core.array_cache import Damaged, verified, with_checksum
from msvq.core.errors import BadInput
from msvq.core.files import expanduser, write_atomically, write_text
from msvq.core.ordinary_files import read_ordinary
from msvq.core.runtime import autocast, check_precision, or_too_large, resolve_device, resolve_precision
from msvq.core.schema import diff
from msvq.core.user_code import is_user_code, must_be_named_explicitly
from msvq.core.version import __version__
from msvq.data.augment import eval_view
from msvq.data.inputs import are_paths, decode_files, materialise, to_image_list
from msvq.data.store import ImageDataset
from msvq.data.to_rgb import Resizing
from msvq.methods import METHODS, Method
from msvq.methods.external import register_file
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.initial import load_weights
from msvq.model.libraries import is_library
from msvq.model.pooling import Encoder
from msvq.model.whitening import Whitened
from msvq.runs.checkpoint import BEST, LAST, PREVIOUS, read_checkpoint
from msvq.runs.run_dir import METADATA, WEIGHTS, RunDir

SEAL = "card_sha256"  # of the metadata themselves
# On a CPU the network always gets so many pictures, the last batch padded: the last bits of what it computes for a
# picture depend on the shape of the whole batch, and are to be the same for any --batch-size.
CHUNK = 64

CPU = torch.device("cpu")
_Deviation = Annotated[FiniteFloat, Gt(0)]
Interpolation = Literal["bilinear", "bicubic"]


# --- encoder.safetensors and encoder.json


class Preprocessing(BaseModel, frozen=True):
    """At what size, and normalised how, an encoder knows pictures."""

    size: PositiveInt
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    std: tuple[_Deviation, _Deviation, _Deviation]
    # As a library does it: all of a picture is resized to this shorter side, then cut. None: as msvq does in training,
    # the centre square is resized.
    resize: PositiveInt | None = None
    interpolation: Interpolation = "bilinear"
    squash: bool = False  # whether a picture is resized to a square, whatever its shape

    @model_validator(mode="after")
    def _there_is_enough_to_cut(self) -> Self:
        if self.side < self.size:
            raise ValueError(f"{self.size} pixels cannot be cut out of {self.side}")
        return self

    @property
    def side(self) -> int:
        """Of a picture that is decoded for it."""
        return self.resize or self.size

    @property
    def resizing(self) -> Resizing | None:
        """The same for whoever fits pictures."""
        if self.resize is None:
            return None
        return Resizing(self.resize, self.size, self.interpolation, self.squash)

    def view(self, images: Tensor) -> Tensor:
        """Pictures uint8 [N, H, W, 3] as the network takes them: float [N, 3, size, size]."""
        return eval_view(images, size=self.size, mean=self.mean, std=self.std, resizing=self.resizing)


class EncoderMetadata(Preprocessing, frozen=True):
    """What is in `encoder.json`."""

    model_config = ConfigDict(extra="allow")  # the version, for one

    method: str
    data: str
    backbone: BackboneSettings
    train_size: PositiveInt
    feature_dim: PositiveInt
    weights_sha256: str


def save_encoder(path: Path, encoder: nn.Module, settings: Settings, data: ImageDataset) -> None:
    """Write `encoder.safetensors` and the `encoder.json` that says what it is and how to feed it."""
    weights = to_safetensors(encoder.state_dict())
    write_atomically(path / WEIGHTS, lambda file: file.write(weights))
    metadata = {
        "msvq": __version__,
        "method": settings.method_name,
        "data": data.name,
        "backbone": settings.backbone.model_dump(mode="json"),
        "train_size": data.size,
        "size": data.test_size,
        "mean": data.mean,
        "std": data.std,
        "feature_dim": encoder.feature_dim,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_text(path / METADATA, json.dumps(with_checksum(metadata, SEAL), indent=2) + "\n")


def to_safetensors(state: Mapping[str, Tensor]) -> bytes:
    """A file of weights, of which no two share memory."""
    return save({name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()})


def read_metadata(run: RunDir) -> EncoderMetadata:
    """`encoder.json`: what the encoder is and how to feed it."""
    path = run.path / METADATA
    if not path.is_file():
        raise _no_encoder(run)
    try:
        metadata = EncoderMetadata.model_validate(verified(json.loads(read_ordinary(path)), SEAL))
    except (ValueError, RecursionError, TypeError, AttributeError, Damaged):
        raise _damaged(run, path) from None
    if run.backbone is not None:
        named = metadata.backbone.model_copy(update={"name": run.backbone})
        metadata = metadata.model_copy(update={"backbone": named})
    return metadata


def read_weights(run: RunDir) -> dict[str, Tensor]:
    """The weights in `encoder.safetensors`, if they are those that `encoder.json` was written for."""
    path, expected = run.path / WEIGHTS, read_metadata(run).weights_sha256
    if not path.is_file():
        raise BadInput(f"{path} is gone; {_way_out(run)}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise _damaged(run, path)
    try:
        return read_safetensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise _damaged(run, path) from None


def _no_encoder(run: RunDir) -> BadInput:
    return BadInput(f"{run.path} has no encoder yet; finish the run with --resume")


def _damaged(run: RunDir, path: Path) -> BadInput:
    return BadInput(f"{path} is damaged, or not the one that this run wrote; {_way_out(run)}")


def _way_out(run: RunDir) -> str:
    last = run.path / "checkpoints" / LAST
    other = f", or take --checkpoint {last}" if last.is_file() else ""
    return f"'msvq pretrain --resume --out {run.path}' writes it anew{other}"


def state_dict_mismatch(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """What of the tensors that were found is not as in a network's `own`, the first of it; empty if all is."""
    for name in own:
        there, wanted = found.get(name), own[name]
        # A module may keep other things than tensors in its state.
        if isinstance(there, Tensor) and isinstance(wanted, Tensor) and there.shape != wanted.shape:
            return f"{name} is {list(there.shape)}, not {list(wanted.shape)}"
    missing = next((f"{name} is not in it" for name in own if name not in found), "")
    return missing or next((f"there is no place for {name}" for name in found if name not in own), "")


# --- a loaded encoder


@dataclass(frozen=True)
class LoadedEncoder:
    """A network in eval mode, how to feed it, and where it came from. Called, it gives the features of pictures."""

    name: str  # what a person calls it by
    network: nn.Module
    preprocessing: Preprocessing
    backbone: BackboneSettings  # what the network was built by, and for training pictures of what size
    train_size: int
    feature_dim: int
    method: str = ""  # what it was trained by, and on what data, for others to read; empty: unknown
    data: str = ""
    run: RunDir | None = None  # where it is of one
    checkpoint: str = "last"  # of a run: "last", "best", or the name of a file
    step: int | None = None  # None where the file does not say
    of_run: bool = False  # whether the run's own training made the weights, so that its log tells of them
    note: str = ""  # what was taken from where, and what had to be guessed, for a person
    guessed: bool = False  # whether nothing says how to feed it
    device: torch.device = CPU
    precision: str = "fp32"

    def __str__(self) -> str:
        return self.name

    @property
    def size(self) -> int:
        """The side of the pictures that it is given."""
        return self.preprocessing.size

    @property
    def title(self) -> str:
        """The network's name for others to read: the folders of a file of one's own are nobody's business."""
        return Path(self.backbone.name).name

    @cached_property
    def _networks(self) -> dict[torch.device, nn.Module]:
        """The network by the device: it is copied to another once, however often it is asked for there."""
        return {self.device: self.network}

    def to(self, device: str | None = None, precision: str | None = None) -> "LoadedEncoder":
        """The same on a device ("auto" unless named), in fp32 unless asked otherwise."""
        chosen = check_precision(precision or "fp32")
        target = resolve_device(device or "auto")
        if target not in self._networks:
            self._networks[target] = copy.deepcopy(self.network).to(target)
        return replace(self, network=self._networks[target], device=target, precision=resolve_precision(chosen, target))

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features [n, d] of pictures uint8 [n, H, W, 3]; the same whatever the others are, in fp32 on a CPU."""
        way = "free some" if self.device.type == "cpu" else "lower 'msvq embed --batch-size', or give --device cpu"
        with or_too_large(f"{len(images)} pictures at a time do not fit into the memory of {self.device}; {way}"):
            features = self._forward(images)
        if not np.isfinite(features).all():
            which = f"the {self.checkpoint} checkpoint" if self.run is not None else self.name
            raise BadInput(
                f"{which} gives features that are not numbers, so its training has diverged "
                f"(or --precision {self.precision} is too coarse); take another "
                f"{'--checkpoint' if self.run is not None else 'encoder'}"
            )
        return features

    def embed(
        self,
        images: ArrayLike | Sequence[ArrayLike] | Iterable[str | PathLike[str]],
        *,
        batch_size: int = 500,
    ) -> NDArray[np.float32]:
        """Features [N, d] of pictures that a person hands over in Python: arrays of many shapes, or names of files.

        No more than `batch_size` go through the network at a time.
        """
        if batch_size < 1:
            raise BadInput(f"batch_size is a number of pictures, at least 1, not {batch_size}")
        images = materialise(images)
        if are_paths(images):
            none, how = np.zeros((0, self.feature_dim), np.float32), self.preprocessing
            batches = decode_files(images, how.side, how.resizing, most=batch_size)
            return np.concatenate([none, *map(self, batches)])
        pictures = to_image_list(images)  # type: ignore[arg-type]  # not files, so arrays
        found = np.zeros((len(pictures), self.feature_dim), np.float32)
        shapes = [picture.shape for picture in pictures]
        for shape in dict.fromkeys(shapes):  # pictures of equal size go through together
            chosen = [index for index, other in enumerate(shapes) if other == shape]
            for start in range(0, len(chosen), batch_size):
                rows = chosen[start : start + batch_size]
                found[rows] = self(np.stack([pictures[index] for index in rows]))
        return found

    @torch.no_grad()
    def _forward(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        features = np.zeros((len(images), self.feature_dim), np.float32)
        at_once = CHUNK if self.device.type == "cpu" else max(1, len(images))
        for start in range(0, len(images), at_once):
            part = torch.from_numpy(images[start : start + at_once]).to(self.device)
            view = self.preprocessing.view(part)
            if self.device.type == "cpu" and len(part) < CHUNK:
                filled = view.new_zeros(CHUNK, *view.shape[1:]).to(memory_format=torch.channels_last)
                filled[: len(part)] = view
                view = filled
            with autocast(self.device, self.precision):
                features[start : start + len(part)] = self.network(view)[: len(part)].float().cpu().numpy()
        return features

    @cached_property
    def key(self) -> str:
        """Of the weights, the network and all else that changes the numbers."""
        return self._digest(self.precision, self.device.type, CHUNK)

    @cached_property
    def weights_key(self) -> str:
        """Of the weights, the network and what it is fed with, wherever it computes."""
        return self._digest()

    def _digest(self, *where: str | int) -> str:
        how = self.preprocessing.model_dump(mode="json", exclude_defaults=True)
        facts = [how, *where, self._built_by()]
        digest, state = hashlib.sha256(json.dumps(facts).encode()), self.network.state_dict()
        for name in sorted(state):
            digest.update(name.encode())
            digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:32]

    def _built_by(self) -> list[Any]:
        """What the network is: the same weights give other features in another one, or after a change of its code."""
        name = self.backbone.name
        if is_library(name):  # which may build it otherwise in its next version
            return [name, version(name.partition(":")[0]), self.train_size]
        if not is_user_code(name):
            return [name, self.backbone.width, self.backbone.stem, self.train_size]
        file, _, function = name.rpartition(":")
        return [hashlib.sha256(Path(file).read_bytes()).hexdigest(), function, self.train_size]


def load_run_encoder(run: RunDir, checkpoint: str = "last") -> LoadedEncoder:
    """The run's encoder: "last", "best" (by held-out pictures), or a file (.ckpt or .safetensors)."""
    path = checkpoint_path(run, checkpoint)
    own = _is_own(run, path)
    if own:  # the metadata belong to the weights and are sealed; config.yaml anyone may edit
        metadata = read_metadata(run)
        backbone, size, preprocessing = metadata.backbone, metadata.train_size, Preprocessing(**metadata.model_dump())
        state, step = read_weights(run), max((line["step"] for line in run.metrics()), default=None)
        network = make_backbone(backbone, size)
        _check_own(run, metadata, network, state)
    else:
        backbone, size, preprocessing = run.config.backbone, trained_size(run), _begun_with(run)
        state, step = _read_other(run, path)
        network = make_backbone(backbone, size)
    _fill(network, state, path)
    return LoadedEncoder(
        name=str(run.path),
        run=run,
        network=freeze(network),
        preprocessing=preprocessing,
        backbone=backbone.for_size(size),
        train_size=size,
        checkpoint=checkpoint_name(run, checkpoint, path),
        step=step,
        of_run=own or path.resolve().parent == (run.path / "checkpoints").resolve(),
        feature_dim=network.feature_dim,
        method=Path(run.config.method_name).name,
        data=str(run.environment().get("data", Path(run.config.data.source).name)),
    )


def freeze(network: Encoder) -> Encoder:
    """The network as it is used: in eval mode, without gradients."""
    if isinstance(network, Whitened):
        network.fixed = True
    return network.eval().requires_grad_(False)


def _begun_with(run: RunDir) -> Preprocessing:
    """How the run has fed its network, by what it began with."""
    begun = run.environment()
    if not {"mean", "std"} <= begun.keys():
        raise BadInput(f"{run.path} does not say how its pictures are normalised; finish the run with --resume")
    size = run.config.data.test_size or trained_size(run)
    try:
        return Preprocessing(size=size, mean=begun["mean"], std=begun["std"])
    except ValidationError:
        raise BadInput(f"{run.path / 'environment.json'} is damaged; restore it, or start the run anew") from None


def _read_other(run: RunDir, path: Path) -> tuple[dict[str, Tensor], int | None]:
    """The encoder's weights in a file that is not the run's `encoder.safetensors`, and their step if it says so."""
    if path.suffix == ".ckpt":
        saved = read_state(path)
        _check_settings(run, saved, path, "backbone")
        return encoder_state(saved), saved.get("step")
    try:
        return read_safetensors(path.read_bytes()), None
    except (SafetensorError, OSError, ValueError):
        raise BadInput(f"{str(path)!r} is damaged, or no safetensors file; take another with --checkpoint") from None


def _check_own(run: RunDir, metadata: EncoderMetadata, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise if the network is not what it was when the run's weights and metadata were written."""
    what, file = state_dict_mismatch(network.state_dict(), weights), WEIGHTS
    if not what and network.feature_dim != metadata.feature_dim:
        what, file = f"it is of one with {metadata.feature_dim} features, not {network.feature_dim}", METADATA
    if what:
        way_out = "it needs the network as it was when the run was trained"
        raise BadInput(f"{run.path / file} does not fit {metadata.backbone.name} as it is now: {what}; {way_out}")


def load_method(run: RunDir, checkpoint: str = "last", *, method: str | None = None) -> tuple[Method, str, int]:
    """The run's whole method with teachers and queues, the checkpoint's name and its step.

    `method`: the file of a method of one's own, which is run only because it is named here.
    """
    name = run.config.method_name
    if is_user_code(name):
        if method is None:
            raise must_be_named_explicitly("method", name)
        register_file(method)
        name = method
    elif method is not None and method != name:
        raise BadInput(f"the run is of method {name}, not {method}; leave out --method")
    path = checkpoint_path(run, checkpoint, with_teachers=True)
    saved = read_state(path)
    _check_settings(run, saved, path, "backbone", "method")
    backbone = make_backbone(run.config.backbone, trained_size(run))
    built = METHODS[name](backbone, **run.config.method_options)
    _fill(built, saved["method"], path)
    return built, checkpoint_name(run, checkpoint, path), int(saved.get("step", 0))


# --- checkpoints as sources of weights


def checkpoint_name(run: RunDir, checkpoint: str, path: Path) -> str:
    """What a checkpoint is called in results: that of another run never takes the name of one's own."""
    if checkpoint in ("last", "best"):
        return checkpoint
    if _is_own(run, path):
        return "last"
    place = path.resolve()
    if place.parent == (run.path / "checkpoints").resolve():
        return place.stem
    return f"{place.stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:6]}"


def checkpoint_path(run: RunDir, checkpoint: str, *, with_teachers: bool = False) -> Path:
    """The file that a name of a checkpoint means. `with_teachers`: and queues, not the encoder alone."""
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
        if finished.is_file() and (run.path / METADATA).is_file() and not with_teachers:  # a kill may come between
            return finished
        found = [folder / name for name in (LAST, PREVIOUS) if (folder / name).is_file()]
        if not found and finished.is_file():
            raise BadInput(
                f"{run.path} has no checkpoint, and so no teachers and queues to look at; "
                f"'msvq evaluate' judges its encoder"
            )
        if not found:
            raise _no_encoder(run)
        return found[0]
    path = expanduser(checkpoint)
    if not path.is_file():
        raise BadInput(f"there is no checkpoint {checkpoint!r}; give last, best or the path of a file")
    if path.suffix not in (".ckpt", ".safetensors"):
        raise BadInput(f"{checkpoint!r} is no checkpoint: it is a .ckpt of a run or a .safetensors of an encoder")
    if with_teachers and path.suffix == ".safetensors":
        raise BadInput(f"{checkpoint!r} holds an encoder alone; teachers and queues are in a run's .ckpt files")
    return path


def _is_own(run: RunDir, path: Path) -> bool:
    """Whether these are the weights that the run's metadata were written for."""
    return path.resolve() == (run.path / WEIGHTS).resolve()


def read_state(path: Path) -> dict[str, Any]:
    """A checkpoint's content."""
    saved = read_checkpoint(path)
    method = None if saved is None else saved.get("method")
    if saved is None or not isinstance(method, dict) or not all(isinstance(v, torch.Tensor) for v in method.values()):
        raise BadInput(f"{str(path)!r} is damaged, or no checkpoint of msvq; take another with --checkpoint")
    return saved


def encoder_state(saved: dict[str, Any]) -> dict[str, Tensor]:
    """The encoder's part of a checkpoint, whatever the method: the checkpoint says what it begins with."""
    prefix, method = str(saved.get("encoder", "student.backbone.")), saved["method"]
    return {name.removeprefix(prefix): value for name, value in method.items() if name.startswith(prefix)}


def trained_size(run: RunDir) -> int:
    """The side of the crops that the run was trained on."""
    size = run.config.data.size
    if size is None:
        raise BadInput(f"{run.path} was never begun: its config.yaml does not say at which size it is trained")
    return size


def _check_settings(run: RunDir, saved: dict[str, Any], path: Path, *sections: str) -> None:
    """Raise if a checkpoint has another network than `config.yaml` says, which anyone may edit."""
    try:
        recorded = Settings.model_validate(saved["record"]["settings"])
    except (ValidationError, KeyError, TypeError):
        return
    for change in diff(recorded, run.config):
        both_code = is_user_code(str(change.old)) and is_user_code(str(change.new))  # it may have moved
        if change.section in sections and not (change.path == "backbone.name" and both_code):
            raise BadInput(
                f"{str(path)!r} is of another network than the run's: its {change.path} is {change.old!r}, and "
                f"config.yaml says {change.new!r}; give a checkpoint of this run, or restore its config.yaml"
            )


def _fill(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load weights, or say what of them does not fit."""
    own = module.state_dict()
    taken = {name: state[name] for name in own if name in state}
    what = state_dict_mismatch(own, taken)
    if what:
        raise BadInput(f"{str(path)!r} is of another network than the run's: {what}; give a checkpoint of this run")
    load_weights(module, taken)
