"""An encoder judged by a frozen protocol, on its own data or other, with all or few labels."""

import json
import operator
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.files import check_output_file, check_places, write_text
from msvq.core.runtime import check_precision, resolve_device, resolve_precision
from msvq.core.schema import Section, parse_assignment
from msvq.data.sources import DataSettings, absolute, check_source, open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.features import EvalContext, feature_function, fit_whitening
from msvq.evaluate.knn import KnnSettings, suitable_k
from msvq.evaluate.labels import stratified
from msvq.evaluate.protocols import PRECISION, PROTOCOLS, protocol_settings, run_protocol
from msvq.evaluate.results import EvalResult
from msvq.model.backbones import make_backbone
from msvq.runs.encoder import LoadedEncoder, Preprocessing, freeze
from msvq.runs.encoder_names import PIXELS, SEED, EncoderName, find_run, load_encoder, no_data
from msvq.runs.run_dir import RunDir

UNTRAINED = "untrained"
QUICK = ("knn", "probe")  # protocols that train nothing for long


class NoLabels(BadInput):
    """There are none, and a protocol needs them."""


def evaluate(
    name: EncoderName,
    *,
    protocol: str = "knn",
    data: str | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    checkpoint: str = "last",
    backbone: str | None = None,
    labels: float = 1.0,
    seeds: int = 1,
    overrides: Iterable[str] = (),
    device: str | None = None,
    precision: str | None = None,
    out: Path | None = None,
    beside: Sequence[str] = (),
    rivals: bool = False,
    display: Display | None = None,
) -> tuple[EvalResult, Path | None]:
    """The result of a protocol and the file that holds it: `out`, or in RUN/eval. Arguments as of `msvq evaluate`.

    `beside`: other encoders, which the same protocol judges on the same pictures; the result has its rows of them.
    `rivals`: the same network untrained, and pixels, are of them where the protocol takes seconds.
    """
    run = find_run(name, backbone=backbone)
    if out is not None:
        check_output_file("--out", out, [".json"])
    elif run is not None:
        check_places(run.path, ["eval"])
    if run is None and data is None:
        raise no_data(name)
    display = display or Display()
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    given = dict(map(parse_assignment, overrides))
    settings, changes = protocol_settings(PROTOCOLS[protocol].settings, given)
    try:
        labels, seeds = float(labels), operator.index(seeds)
    except (TypeError, ValueError):
        raise BadInput(f"--labels is a share and --seeds a whole number, not {labels!r} and {seeds!r}") from None
    if not 0 < labels <= 1:
        raise BadInput(f"--labels is a share of the labelled pictures, above 0 and at most 1, not {labels}")
    if seeds < 1:
        raise BadInput(f"--seeds is a number of repetitions, at least 1, not {seeds}")
    if data is not None:
        check_source(data)
    encoder = load_encoder(run or name, checkpoint, backbone=backbone)
    usual = usual_rivals(encoder) if rivals and protocol in QUICK else []
    others = [load_beside(other, encoder) for other in dict.fromkeys([*beside, *usual])]
    for told in (one.note for one in (encoder, *others) if one.note):
        display.note(told)
    target = resolve_device(device or "auto")
    chosen = resolve_precision(check_precision(precision or PRECISION), target)
    if chosen != PRECISION:
        changes["precision"] = chosen
    for one in (encoder, *others):
        if protocol == "finetune" and not list(one.network.parameters()):
            raise BadInput(f"{one.name} has no weights that could go on learning; take another --protocol")

    def judge(one: LoadedEncoder, dataset: ImageDataset, own: bool) -> tuple[EvalResult, dict[str, Any]]:
        """A result, and its row in a table of several."""
        if not dataset.has_labels:
            ways = "--beside pixels compares what can be compared"
            ways += "" if run is None else ", and 'msvq analyze' does without"
            raise NoLabels(f"{dataset.name} has no labels, and {protocol} needs them; {ways}")
        context = EvalContext(one.network.to(target), one.backbone, dataset, target, chosen, display)
        begun = time.perf_counter()
        result = run_protocol(
            protocol,
            context,
            settings,
            changes,
            labels=labels,
            seeds=seeds,
            transfer=not own,
            checkpoint=one.checkpoint,
            step=one.step,
        )
        row = {"encoder": one.name, "top1": result.top1, "top5": result.top5, "num_features": one.feature_dim}
        return result, row | {"seconds": round(time.perf_counter() - begun, 2)}

    how = None if encoder.guessed else encoder.preprocessing
    dataset, own = open_for(run, data, data_root, preprocessing=how, download=download, display=display)
    if protocol == "knn" and "k" not in given and dataset.has_labels:
        settings, changes = follow_labels(settings, changes, dataset, labels, run if own else None)
    with closing(dataset):
        result, row = judge(encoder, dataset, own)
    rows = [row]
    for other in others:
        with closing(open_beside(other, run, data, data_root, display)) as pictures:
            rows.append(judge(other, pictures, own)[1])
    update = {} if run is not None else {"encoder": encoder.name}
    result = result.model_copy(update=update | ({"beside": rows} if others else {}))
    if out is not None:
        write_text(out, json.dumps(result.record, indent=1) + "\n")
        return result, out
    return result, None if run is None else result.save(run.path / "eval")


def follow_labels(
    settings: Section, changes: dict[str, Any], dataset: ImageDataset, labels: float, run: RunDir | None
) -> tuple[Section, dict[str, Any]]:
    """kNN's settings where no k is named: as many as voted in the run, on its pictures; else as suit the labels."""
    known = dataset.labelled.labels
    if run is not None and labels == 1:
        k = min(run.config.evaluate.knn_k, len(known))
    else:
        k = suitable_k(known if labels == 1 else known[stratified(known, labels, seed=0)])
    if k == KnnSettings().k:
        return settings, changes
    return settings.model_copy(update={"k": k}), {"k": k, **changes}


def usual_rivals(encoder: LoadedEncoder) -> list[str]:
    """What an accuracy is held against."""
    trained = any(True for _ in encoder.network.parameters())
    return [*([UNTRAINED] if trained else []), *([PIXELS] if encoder.name != PIXELS else [])]


def open_for(
    run: RunDir | None,
    data: str | None,
    data_root: str | Path | None,
    *,
    preprocessing: Preprocessing | None = None,
    download: bool = False,
    moved: bool = False,
    display: Display,
) -> tuple[ImageDataset, bool]:
    """The run's own data, or other pictures; and whether they are the run's own.

    `preprocessing`: how other pictures are fed to the encoder; None: as the data set has it. `moved`: `data` is where
    the run's own pictures are now.
    """
    settings, own = _data_settings(run, data, data_root, moved=moved)
    resizing = None
    if run is None and preprocessing is not None:
        settings, resizing = _sized(settings, preprocessing), preprocessing.resizing
    check_source(settings.source)
    dataset = open_dataset(settings, resizing=resizing, download=download, display=display)
    if preprocessing is not None:  # normalised as in training, which is what the first layer knows
        dataset = with_preprocessing(dataset, preprocessing)
    known = None if run is None else run.environment().get("data_fingerprint")
    if own and not moved and known not in (None, dataset.fingerprint):
        display.note(
            f"note: {dataset.name} has changed since the run was trained on it, so it is judged as other data; "
            f"its test pictures may be some that the run has learned from"
        )
        own = False
    return dataset, own


def _data_settings(
    run: RunDir | None, data: str | None, data_root: str | Path | None, *, moved: bool = False
) -> tuple[DataSettings, bool]:
    """Which pictures, and whether they are the run's own."""
    trained = DataSettings() if run is None else run.config.data
    own = run is not None and (moved or data is None or absolute(data) == trained.source)
    root = Path(data_root) if data_root is not None else trained.root if own else None
    place = {"source": trained.source if data is None else data, "root": root}
    sizes = {"size": trained.size, "test_size": trained.test_size}
    return trained.model_copy(update=place) if own else DataSettings().model_copy(update=place | sizes), own


def _sized(settings: DataSettings, how: Preprocessing) -> DataSettings:
    return settings.model_copy(update={"size": how.size, "test_size": how.side})


def load_beside(name: str, encoder: LoadedEncoder) -> LoadedEncoder:
    """An encoder to compare with: by its name, or `untrained`, the same network with fresh weights."""
    if name != UNTRAINED:
        return load_encoder(name)
    if not list(encoder.network.parameters()):
        raise BadInput(f"{encoder.name} has no weights, so there is no untrained one to put beside it")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = freeze(make_backbone(encoder.backbone, encoder.train_size))
    return replace(encoder, name=UNTRAINED, network=network, note="")


def open_beside(
    other: LoadedEncoder, run: RunDir | None, data: str | None, data_root: str | Path | None, display: Display
) -> ImageDataset:
    """The pictures that `open_for` opens, as another encoder is fed with them."""
    settings, own = _data_settings(run, data, data_root)
    resizing = None
    if not other.guessed and not (own and other.name == UNTRAINED):
        settings, resizing = _sized(settings, other.preprocessing), other.preprocessing.resizing
    dataset = open_dataset(settings, resizing=resizing, display=display)
    dataset = dataset if other.guessed else with_preprocessing(dataset, other.preprocessing)
    if other.name == UNTRAINED:
        device = next(other.network.parameters()).device
        fit_whitening(other.network, feature_function(dataset, device, PRECISION), dataset.train)
    return dataset


def with_preprocessing(dataset: ImageDataset, how: Preprocessing) -> ImageDataset:
    """The data set with its test pictures fed to an encoder as that knows them."""
    return replace(dataset, mean=how.mean, std=how.std, test_size=how.size, resizing=how.resizing)
