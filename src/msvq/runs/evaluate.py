"""An encoder of a run judged by a frozen protocol, on its own data or other, with all or few labels."""

import operator
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.files import check_places
from msvq.core.runtime import check_precision, resolve_device, resolve_precision
from msvq.core.schema import parse_assignment
from msvq.data.sources import DataSettings, absolute, check_source, open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.features import EvalContext
from msvq.evaluate.protocols import PRECISION, PROTOCOLS, protocol_settings, run_protocol
from msvq.evaluate.results import EvalResult
from msvq.runs.encoder import Preprocessing, load_encoder
from msvq.runs.run_dir import RunDir


def evaluate(
    run: RunDir,
    *,
    protocol: str = "knn",
    data: str | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    checkpoint: str = "last",
    labels: float = 1.0,
    seeds: int = 1,
    overrides: Iterable[str] = (),
    device: str | None = None,
    precision: str | None = None,
    display: Display | None = None,
) -> tuple[EvalResult, Path]:
    """The result of a protocol and the file in RUN/eval that holds it. The arguments are those of `msvq evaluate`."""
    check_places(run.path, ["eval"])
    display = display or Display()
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    settings, changes = protocol_settings(PROTOCOLS[protocol].settings, dict(map(parse_assignment, overrides)))
    try:
        labels, seeds = float(labels), operator.index(seeds)
    except (TypeError, ValueError):
        raise BadInput(f"--labels is a share and --seeds a whole number, not {labels!r} and {seeds!r}") from None
    if not 0 < labels <= 1:
        raise BadInput(f"--labels is a share of the labelled pictures, above 0 and at most 1, not {labels}")
    if seeds < 1:
        raise BadInput(f"--seeds is a number of repetitions, at least 1, not {seeds}")
    encoder = load_encoder(run, checkpoint)
    target = resolve_device(device or "auto")
    chosen = resolve_precision(check_precision(precision or PRECISION), target)
    if chosen != PRECISION:
        changes["precision"] = chosen
    dataset, own = open_for(
        run, data, data_root, preprocessing=encoder.preprocessing, download=download, display=display
    )
    with closing(dataset):
        if not dataset.has_labels:
            raise BadInput(f"{dataset.name} has no labels, and {protocol} needs them; 'msvq analyze' does without")
        subject = EvalContext(encoder.network.to(target), run.config.backbone, dataset, target, chosen, display)
        result = run_protocol(
            protocol,
            subject,
            settings,
            changes,
            labels=labels,
            seeds=seeds,
            transfer=not own,
            checkpoint=encoder.checkpoint,
            step=encoder.step,
        )
    return result, result.save(run.path / "eval")


def open_for(
    run: RunDir,
    data: str | None,
    data_root: str | Path | None,
    *,
    preprocessing: Preprocessing | None = None,
    download: bool = False,
    moved: bool = False,
    display: Display,
) -> tuple[ImageDataset, bool]:
    """The run's own data, or other pictures; and whether they are the run's own.

    `preprocessing`: how other pictures are normalised. `moved`: `data` is where the run's own pictures are now.
    """
    trained = run.config.data
    own = moved or data is None or absolute(data) == trained.source
    root = Path(data_root) if data_root is not None else trained.root if own else None
    place = {"source": trained.source if data is None else data, "root": root}
    sizes = {"size": trained.size, "test_size": trained.test_size}
    settings = trained.model_copy(update=place) if own else DataSettings().model_copy(update=place | sizes)
    check_source(settings.source)
    dataset = open_dataset(settings, download=download, display=display)
    if own and not moved and run.environment().get("data_fingerprint", dataset.fingerprint()) != dataset.fingerprint():
        display.note(
            f"note: {dataset.name} has changed since the run was trained on it, so it is judged as other data; "
            f"its test pictures may be some that the run has learned from"
        )
        own = False
    if not own and preprocessing is not None:  # normalised as in training, which is what the first layer knows
        dataset = replace(dataset, mean=preprocessing.mean, std=preprocessing.std)
    return dataset, own
