"""A run directory, as an object: its settings, its metrics, its encoder."""

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.torch import load as read_weights
from torch import Tensor

from msvq.config.resolve import read_config
from msvq.config.settings import Settings
from msvq.core.array_cache import Damaged, verified
from msvq.core.errors import BadInput
from msvq.core.runtime import resolve_device
from msvq.core.user_code import is_user_code
from msvq.data.given import PORTION, are_paths, decode_files, materialise, to_image_list
from msvq.data.workers import Result
from msvq.evaluate.features import extract_features
from msvq.model.backbones import BackboneSettings, Encoder, make_backbone, register_backbone
from msvq.runs.checkpoint import LAST
from msvq.runs.encoder_card import CARD, HASH, SEAL, WEIGHTS, EncoderMetadata, save_encoder, state_dict_mismatch
from msvq.runs.metrics import read_metrics
from msvq.runs.results import Accuracy, Analysis, EvalOptions, RunOptions

__all__ = ["CARD", "WEIGHTS", "Embedded", "Run", "load", "save_encoder"]


class Run:
    """A finished or running pre-training: what `msvq.pretrain` returns and `msvq.load` opens."""

    def __init__(self, path: Path, *, backbone: str | None = None) -> None:
        self.path = path
        self.backbone = backbone  # the run's own code, where a person has named it

    def __repr__(self) -> str:
        scores = [line["knn_top1"] for line in self.metrics() if "knn_top1" in line]
        knn = f", kNN {scores[-1]:.1f} %" if scores else ""
        return f"Run({str(self.path)!r}: {self.config.method_name} on {self.config.data.source}{knn})"

    def _repr_html_(self) -> str:
        """What a notebook shows: method, data, accuracies and curves."""
        from msvq.report.summary import summary

        return summary(self.path)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was read from the directory: it is read again, so a pickle or a copy is small."""
        kept = vars(self).items()
        return {name: value for name, value in kept if not hasattr(type(self), name)}  # a class has what is cached

    @cached_property
    def config(self) -> Settings:
        """The complete settings."""
        settings = read_config(self.path / "config.yaml")
        if self.backbone is None:
            return settings
        named = settings.backbone.model_copy(update={"name": self.backbone})
        return settings.model_copy(update={"backbone": named})

    def environment(self) -> dict[str, Any]:
        """What the run was made with: versions, hardware, and a fingerprint of its data."""
        path = self.path / "environment.json"
        try:
            return dict(json.loads(path.read_bytes())) if path.is_file() else {}
        except (ValueError, TypeError, RecursionError):
            way_out = "restore it, or delete it if the pictures are still those that the run began with"
            raise BadInput(f"{path} is damaged; {way_out}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_metrics(self.path / "metrics.jsonl")

    @cached_property
    def card(self) -> dict[str, Any]:
        """`encoder.json`: what the encoder is and how to feed it."""
        path = self.path / CARD
        if not path.is_file():
            raise BadInput(f"{self.path} has no encoder yet; finish the run with --resume")
        try:
            card = json.loads(path.read_bytes())
            card = verified(card, SEAL) if {HASH, SEAL} & set(card) else card
            card = {**card, **EncoderMetadata.model_validate(card).model_dump(mode="json", exclude_none=True)}
            if self.backbone is not None:
                card["backbone"]["name"] = self.backbone
            return card
        except (ValueError, RecursionError, TypeError, AttributeError, Damaged):
            raise self._damaged(path) from None

    @cached_property
    def encoder(self) -> Encoder:
        """The trained backbone in eval mode: normalised pictures [N, 3, H, W] to features [N, d].

        Of a run that is not finished, it is that of the last checkpoint.
        """
        return self._in_use[0]

    @property
    def _feeding(self) -> dict[str, Any]:
        return self._in_use[1]

    @cached_property
    def _in_use(self) -> tuple[Encoder, dict[str, Any]]:
        """The encoder, and how to feed it: size, mean, std and feature_dim."""
        from msvq.runs.weights import load_encoder, preprocessing_of  # it builds on runs

        finished = (self.path / CARD).is_file()
        encoder = self._finished_encoder() if finished else cast(Encoder, load_encoder(self).encoder)
        return encoder, {**preprocessing_of(self).model_dump(), "feature_dim": encoder.feature_dim}

    def _finished_encoder(self) -> Encoder:
        backbone = BackboneSettings.model_validate(self.card["backbone"])
        encoder, weights = make_backbone(backbone, self.card["train_size"]), self.read_encoder()
        what, expected, file = state_dict_mismatch(encoder.state_dict(), weights), self.card["feature_dim"], WEIGHTS
        if not what and encoder.feature_dim != expected:
            what, file = f"it is of one with {expected} features, not {encoder.feature_dim}", CARD
        if what and HASH not in self.card:  # nothing tells that weights and card belong together
            raise self._damaged(self.path / file)
        if what:
            way_out = "it needs the network as it was when the run was trained"
            raise BadInput(f"{self.path / file} does not fit {backbone.name} as it is now: {what}; {way_out}")
        encoder.load_state_dict(weights)
        return encoder.eval().requires_grad_(False)

    def read_encoder(self) -> dict[str, Tensor]:
        """The weights in `encoder.safetensors`, if they are those that the card was written for."""
        path, expected = self.path / WEIGHTS, self.card.get(HASH)
        if not path.is_file():
            raise BadInput(f"{path} is gone; {self._way_out()}")
        content = path.read_bytes()
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise self._damaged(path)
        try:
            return read_weights(content)
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise self._damaged(path) from None

    def _damaged(self, path: Path) -> BadInput:
        return BadInput(f"{path} is damaged, or not the one that this run wrote; {self._way_out()}")

    def _way_out(self) -> str:
        last = self.path / "checkpoints" / LAST
        other = f", or take --checkpoint {last}" if last.is_file() else ""
        return f"'msvq pretrain --resume --out {self.path}' writes it anew{other}"

    def embed(
        self,
        images: ArrayLike | Sequence[ArrayLike] | Iterable[str | PathLike[str]],
        *,
        batch_size: int = 500,
        device: str | None = None,
    ) -> NDArray[np.float32]:
        """Features [N, d] of pictures: uint8 (0..255) or float (0..1), of any size, one array or a list; or files.

        Channels may come last or first; grey pictures may leave them out, but an array [3, 28, 28] is one picture:
        three grey ones are a list, or [3, 28, 28, 1]. A picture of another size than the encoder expects is resized,
        its shorter side first, and cropped to the centre. File names must be of readable pictures alone:
        `embed_source` passes over others. `device`: "auto" unless it is named.
        """
        if batch_size < 1:
            raise BadInput(f"batch_size is a number of pictures, at least 1, not {batch_size}")
        images = materialise(images)
        if are_paths(images):
            return self._features(decode_files(images, self._feeding["size"]), device)
        pictures = to_image_list(images)  # type: ignore[arg-type]  # not files, so arrays
        sizes = [picture.shape for picture in pictures]
        features = np.zeros((len(pictures), self._feeding["feature_dim"]), np.float32)
        for size in dict.fromkeys(sizes):  # pictures of equal size go through together
            chosen = [index for index, other in enumerate(sizes) if other == size]
            batches = (
                np.stack([pictures[index] for index in chosen[start : start + batch_size]])
                for start in range(0, len(chosen), batch_size)
            )
            features[chosen] = self._features(batches, device)
        return features

    def embed_source(
        self, source: str | Path, *, split: str = "all", workers: int | None = None, device: str | None = None
    ) -> "Embedded":
        """Features of all pictures of what `--data` takes, or of a split; and which cannot be read, with the reason."""
        from msvq.search.source import open_source  # it builds on runs

        pictures = open_source(self, str(source), split=split)
        good: list[int] = []
        skipped = list(pictures.unlisted)
        portions = (np.arange(i, min(i + PORTION, len(pictures))) for i in range(0, len(pictures), PORTION))

        def batches(results: Iterable[Result]) -> Iterator[NDArray[np.uint8]]:
            start = 0
            for result in results:
                kept = [i for i in range(len(result.rows)) if i not in result.reasons]
                skipped.extend((pictures.names[start + i], reason) for i, reason in result.reasons.items())
                good.extend(start + i for i in kept)
                start += len(result.rows)
                if kept:
                    yield result.rows[kept]

        with closing(pictures.decoded(portions, self._feeding["size"], workers=workers)) as results:
            features = self._features(batches(results), device)
        return Embedded(features, [pictures.names[i] for i in good], pictures.labels[good], skipped)

    def _features(self, batches: Iterable[NDArray[np.uint8]], device: str | None) -> NDArray[np.float32]:
        """Features [N, d] of batches of pictures uint8 [n, H, W, 3]."""
        target = resolve_device(device or "auto")
        encoder = self.encoder if target.type == "cpu" else copy.deepcopy(self.encoder).to(target)
        return extract_features(encoder, batches, device=target, **self._feeding).numpy()

    def knn(self, *, k: int | None = None, temp: float | None = None, **options: Unpack[EvalOptions]) -> Accuracy:
        """Votes of the `k` nearest labelled pictures, weighted at temperature `temp`; nothing is trained.

        This and the next three are `msvq evaluate`, with its options; the result goes to RUN/eval.
        """
        return self._judge("knn", {"k": k, "temp": temp}, options)

    def probe(self, **options: Unpack[EvalOptions]) -> Accuracy:
        """Logistic regression on features, in seconds."""
        return self._judge("probe", {}, options)

    def linear(self, *, epochs: int | None = None, **options: Unpack[EvalOptions]) -> Accuracy:
        """The paper's linear evaluation: 100 `epochs`, unless told otherwise, of a classifier on the frozen encoder."""
        return self._judge("linear", {"epochs": epochs}, options)

    def finetune(
        self, *, depth: str | None = None, epochs: int | None = None, **options: Unpack[EvalOptions]
    ) -> Accuracy:
        """The network trained on with labels, and the same one from scratch beside it (`scratch_top1` in `record`)."""
        return self._judge("finetune", {"depth": depth, "epochs": epochs}, options)

    def _judge(self, protocol: str, changes: dict[str, Any], options: EvalOptions) -> Accuracy:
        from msvq.runs.evaluate import evaluate  # it builds on runs

        named = [f"{key}={value}" for key, value in changes.items() if value is not None]
        options["overrides"] = [*named, *options.get("overrides", ())]
        found, path = evaluate(self, protocol=protocol, **options)
        return Accuracy(found["top1"], found["top5"], found["protocol"], path, found)

    def analyze(self, *, method: str | None = None, **options: Unpack[RunOptions]) -> Analysis:
        """Has it collapsed, and what do its teachers find? `msvq analyze`, with its options.

        `method`: the file of a method of one's own, which is run only because it is named here.
        """
        from msvq.runs.analyze import analyze

        found = analyze(self, method=method, **options)
        judged = found["verdict"]
        return Analysis(judged["state"], judged["sentence"], tuple(judged["advice"]), found)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about this run, `report.html` in its directory unless `out` is given; returns its path."""
        from msvq.report.page import report_on

        return report_on([self.path], out=None if out is None else Path(out))

    def export(
        self,
        format: str,
        out: str | Path,
        *,
        checkpoint: str = "last",
        licence: str = "unknown",
        overwrite: bool = False,
    ) -> Path:
        """Write the encoder to the folder `out`, in a form that other tools load; `msvq export`, with its options.

        It is loaded back and compared first. Returns the folder.
        """
        from msvq.export import export_run

        done = export_run(self, format=format, out=out, checkpoint=checkpoint, licence=licence, overwrite=overwrite)
        return Path(done.path)


class Embedded(NamedTuple):
    """Features of the readable pictures of a source, row by row with their names and labels."""

    features: NDArray[np.float32]  # [N, d]
    names: list[str]
    labels: NDArray[np.int64]  # -1 where unknown
    skipped: list[tuple[str, str]]  # name and reason


def load(path: str | Path, *, backbone: str | None = None) -> Run:
    """Open a run directory. `backbone`: where its backbone is code of your own (`file.py:function`), which is run only
    because it is named here; it may have moved since.
    """
    path = Path(path)
    if not (path / "config.yaml").is_file():
        raise BadInput(f"{str(path)!r} is not a run: there is no config.yaml in it")
    if backbone is not None:
        trained = Run(path).config.backbone.name
        if backbone != trained and not (is_user_code(trained) and is_user_code(backbone)):
            raise BadInput(f"the run is of backbone {trained}, not {backbone}; leave out --backbone")
        if is_user_code(backbone):
            register_backbone(backbone)
    return Run(path, backbone=backbone)
