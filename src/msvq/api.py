"""What `import msvq` gives: pre-training, and a run with all that one does with it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from torch import nn

from msvq.config.resolve import Flags
from msvq.core.console import Display
from msvq.core.files import check_places
from msvq.core.launch import is_main_process
from msvq.report.page import WRITTEN, report_on, summary, write_report
from msvq.runs import encoder_names
from msvq.runs.analyze import analyze
from msvq.runs.encoder import EncoderMetadata, LoadedEncoder, load_run_encoder, read_metadata
from msvq.runs.evaluate import evaluate
from msvq.runs.run_dir import RunDir, open_run
from msvq.search.embedding import Written, embed, embed_source
from msvq.search.inputs import Inputs
from msvq.train import pretrain as training
from msvq.train.callbacks import Callback
from msvq.train.resume import chosen_mode

if TYPE_CHECKING:  # they need scikit-learn, for which `msvq.load` need not wait
    from msvq.search.classify import Classified
    from msvq.search.clusters import Clusters
    from msvq.search.duplicates import Duplicates
    from msvq.search.mislabelled import Mislabelled
    from msvq.search.outliers import Outliers
    from msvq.search.selection import Selection

Found = TypeVar("Found")


@dataclass(frozen=True)
class Accuracy:
    """What a protocol says of an encoder, in percent; means where there were several seeds."""

    top1: float
    top5: float
    protocol: str  # such as "knn-200-t0.1/1": what was changed in it stands behind its name
    path: Path  # of the result in RUN/eval
    record: Mapping[str, Any] = field(repr=False)  # all that is in that file

    def __str__(self) -> str:
        return f"{self.protocol}: {self.top1:.1f} % (top-5 {self.top5:.1f} %)"


@dataclass(frozen=True)
class Analysis:
    """Whether an encoder has learned anything, and what its teachers find."""

    state: str  # "good", "better", "weak", "too-short", "collapsing", "collapsed" or "unknown"
    sentence: str  # the same in words
    advice: tuple[str, ...]
    record: Mapping[str, Any] = field(repr=False)  # all that is in RUN/eval/analysis.json

    def __str__(self) -> str:
        return f"{self.state}: {self.sentence}"


class Embedded(NamedTuple):
    """Features of the readable pictures of a source, row by row with their names and labels."""

    features: NDArray[np.float32]  # [N, d]
    names: list[str]
    labels: NDArray[np.int64]  # -1 where unknown
    skipped: list[tuple[str, str]]  # name and reason


class RunOptions(TypedDict, total=False):
    """Options of whatever opens a run and looks at it, as its command has them."""

    data: str | None
    data_root: str | Path | None
    checkpoint: str  # "last", "best" or a file
    device: str | None
    precision: str | None
    display: Display | None


class LookOptions(RunOptions, total=False):
    """Options of whatever looks at many pictures, as its command has them."""

    split: str  # "all", "train" or "test"
    download: bool
    out: str | Path | None  # a .csv or .json of all rows
    html: str | Path | None  # a page with thumbnails


class EvalOptions(RunOptions, total=False):
    """Options of every protocol."""

    download: bool
    labels: float  # the share of the labels that is used
    seeds: int
    overrides: Iterable[str]  # key=value


class Run(RunDir):
    """A finished or running pre-training: what `msvq.pretrain` returns and `msvq.load` opens."""

    def __repr__(self) -> str:
        scores = [line["knn_top1"] for line in self.metrics() if "knn_top1" in line]
        knn = f", kNN {scores[-1]:.1f} %" if scores else ""
        return f"Run({str(self.path)!r}: {self.config.method_name} on {self.config.data.source}{knn})"

    def _repr_html_(self) -> str:
        """What a notebook shows: method, data, accuracies and curves."""
        return summary(self.path)

    @cached_property
    def metadata(self) -> EncoderMetadata:
        """`encoder.json`: what the encoder is and how to feed it."""
        return read_metadata(self)

    @property
    def encoder(self) -> nn.Module:
        """The trained backbone in eval mode: normalised pictures [N, 3, H, W] to features [N, d].

        Of a run that is not finished, it is that of the last checkpoint.
        """
        return self._loaded.network

    @cached_property
    def _loaded(self) -> LoadedEncoder:
        return load_run_encoder(self)

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
        return self._loaded.to(device).embed(images, batch_size=batch_size)

    def embed_source(
        self, source: str | Path, *, split: str = "all", workers: int | None = None, device: str | None = None
    ) -> Embedded:
        """Features of all pictures of what `--data` takes, or of a split; and which cannot be read, with the reason."""
        return Embedded(*embed_source(self._loaded.to(device), str(source), split=split, workers=workers))

    def write_features(
        self,
        out: str | Path,
        *,
        pictures: bool = False,
        split: str = "all",
        download: bool = False,
        **options: Unpack[RunOptions],
    ) -> Written:
        """Features of all pictures to an .npz, .parquet or .csv: `msvq embed`, with its options.

        `pictures`: a .parquet holds thumbnails, a map and neighbours as well, for viewers.
        """
        given: dict[str, Any] = dict(options)
        display = given.pop("display", None)
        return embed(Inputs(self, split=split, download=download, **given), out, pictures=pictures, display=display)

    def knn(self, *, k: int | None = None, temp: float | None = None, **options: Unpack[EvalOptions]) -> Accuracy:
        """Votes of the `k` nearest labelled pictures, weighted at temperature `temp`; nothing is trained.

        This and the next three are `msvq evaluate`, with its options; the result goes to RUN/eval.
        """
        return self.evaluate("knn", {"k": k, "temp": temp}, **options)

    def probe(self, **options: Unpack[EvalOptions]) -> Accuracy:
        """Logistic regression on features, in seconds."""
        return self.evaluate("probe", {}, **options)

    def linear(self, *, epochs: int | None = None, **options: Unpack[EvalOptions]) -> Accuracy:
        """The paper's linear evaluation: 100 `epochs`, unless told otherwise, of a classifier on the frozen encoder."""
        return self.evaluate("linear", {"epochs": epochs}, **options)

    def finetune(
        self, *, depth: str | None = None, epochs: int | None = None, **options: Unpack[EvalOptions]
    ) -> Accuracy:
        """The network trained on with labels, and the same one from scratch beside it (`scratch_top1` in `record`)."""
        return self.evaluate("finetune", {"depth": depth, "epochs": epochs}, **options)

    def evaluate(self, protocol: str, changes: Mapping[str, Any] = {}, **options: Unpack[EvalOptions]) -> Accuracy:
        """`msvq evaluate`, with its options; `changes` are what it takes with --set."""
        named = [f"{key}={value}" for key, value in changes.items() if value is not None]
        options["overrides"] = [*named, *options.get("overrides", ())]
        result, path = evaluate(self, protocol=protocol, **options)
        assert path is not None  # a run has a place for it
        return Accuracy(result.top1, result.top5, result.protocol, path, result.record)

    def analyze(self, *, method: str | None = None, **options: Unpack[RunOptions]) -> Analysis:
        """Did it work, and what do its teachers find? `msvq analyze`, with its options.

        `method`: the file of a method of one's own, which is run only because it is named here.
        """
        check_places(self.path, WRITTEN)
        found = analyze(self, method=method, **options)
        write_report(self.path)
        judged = found["verdict"]
        return Analysis(judged["state"], judged["sentence"], tuple(judged["advice"]), found)

    def duplicates(
        self, *, threshold: float | None = None, into: str | Path | None = None, **options: Unpack[LookOptions]
    ) -> "Duplicates":
        """Pictures that are there more than once. This and the next five are commands of these names.

        Each takes their options (`data`: None for the run's own pictures), and returns arrays, names and rows; in a
        notebook the result shows its pictures.
        """
        from msvq.search.duplicates import find_duplicates

        return self._look(find_duplicates, options, threshold=threshold, into=_optional_path(into))

    def outliers(self, *, num: int = 50, **options: Unpack[LookOptions]) -> "Outliers":
        """The pictures least like all others, and why."""
        from msvq.search.outliers import find_outliers

        return self._look(find_outliers, options, num=num)

    def select(
        self,
        num: int,
        *,
        near: Sequence[str | Path] = (),
        avoid: Sequence[str | Path] = (),
        **options: Unpack[LookOptions],
    ) -> "Selection":
        """A few pictures that cover the whole, to label first."""
        from msvq.search.selection import select_pictures

        return self._look(select_pictures, options, num=num, near=near, avoid=avoid)

    def cluster(
        self, num: int | None = None, *, into: str | Path | None = None, **options: Unpack[LookOptions]
    ) -> "Clusters":
        """Groups of alike pictures."""
        from msvq.search.clusters import cluster_pictures

        return self._look(cluster_pictures, options, num=num, into=_optional_path(into))

    def mislabelled(self, **options: Unpack[LookOptions]) -> "Mislabelled":
        """Labels that the pictures contradict, the worst first."""
        from msvq.search.mislabelled import find_mislabelled

        return self._look(find_mislabelled, options)

    def classify(
        self,
        examples: str | Path | None = None,
        *,
        use: str | None = None,
        save: str | None = None,
        onnx: str | Path | None = None,
        **options: Unpack[LookOptions],
    ) -> "Classified":
        """Every picture with a class, by a few `examples` of each, or by a saved classifier."""
        from msvq.export.classifier import check_onnx, export_classifier
        from msvq.search.classify import classify_pictures

        check_onnx(_optional_path(onnx))
        found = self._look(classify_pictures, options, examples=examples, use=use, save=save)
        if onnx is not None:
            made = found.classifier
            export_classifier(Path(onnx), found.encoder, made.weight, made.bias, made.class_names)
        return found

    def _look(self, work: Callable[..., Found], options: LookOptions, **own: Any) -> Found:
        """Do the work of a command on the pictures that its options name."""
        given: dict[str, Any] = dict(options)
        outputs = {name: _optional_path(given.pop(name, None)) for name in ("out", "html")}
        display = given.pop("display", None)
        return work(Inputs(self, **given), **own, **outputs, display=display)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about this run, `report.html` in its directory unless `out` is given; returns its path."""
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
        from msvq.export.exporting import export_encoder

        done = export_encoder(self, format=format, out=out, checkpoint=checkpoint, licence=licence, overwrite=overwrite)
        return Path(done.path)


def _optional_path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def load(path: str | Path, *, backbone: str | None = None) -> Run:
    """Open a run directory; `load_encoder` takes all other encoders.

    `backbone`: code of your own (`file.py:function`), run only if it is named here.
    """
    return Run(open_run(path, backbone=backbone).path, backbone=backbone)


def load_encoder(name: str | Path, *, backbone: str | None = None, device: str | None = None) -> LoadedEncoder:
    """An encoder from anywhere: a run, `timm:NAME`, `torchvision:NAME`, a file, an export, `hf:OWNER/NAME`, "pixels".

    `encoder.embed(pictures)` gives features [N, d]; `encoder.network` is the `nn.Module`. `backbone`: the network that
    a file of weights is of, where it does not tell. `device`: "auto" unless it is named.
    """
    return encoder_names.load_encoder(name, backbone=backbone).to(device)


def pretrain(
    *,
    out: str | Path,
    data: str | Path | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    method: str | None = None,
    backbone: str | None = None,
    init: str | Path | None = None,
    recipe: str | Path | None = None,
    epochs: int | None = None,
    budget: str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    resume: bool = False,
    auto_resume: bool = False,
    overwrite: bool = False,
    loggers: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    made_by: str = "msvq.pretrain",
) -> Run:
    """Train an encoder and return its run. The arguments are those of `msvq pretrain`.

    `overrides` are `key.path=value` strings, or a dictionary of keys and values. `loggers` are "tensorboard" and
    "wandb". Each of `callbacks` is called with every line of metrics.jsonl; an error that it raises ends the run once
    it is saved. Nothing on disk changes until all of the input is checked. Of several processes under torchrun, the
    first returns when the run is complete, the others when it is trained.
    """
    flags = Flags(
        recipe=recipe,
        data=data,
        data_root=data_root,
        method=method,
        backbone=backbone,
        init=init,
        overrides=[f"{key}={json.dumps(value)}" for key, value in overrides.items()]
        if isinstance(overrides, Mapping)
        else overrides,
        epochs=epochs,
        budget=budget,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
    )
    trained = training.pretrain(
        flags,
        Path(out),
        mode=chosen_mode(resume=resume, auto_resume=auto_resume, overwrite=overwrite),
        download=download,
        loggers=loggers,
        callbacks=callbacks,
        console=console or Console() if is_main_process() else Console(quiet=True),
        made_by=made_by,
    )
    if not trained:
        return load(out, backbone=backbone)
    if is_main_process():
        write_report(Path(out))
    return Run(Path(out))
