"""What `import msvq` gives: a look before training, pre-training, and a run with all that one does with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, TypeVar, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from torch import Tensor, nn

from msvq.config.resolve import Flags
from msvq.core.console import Display, printed
from msvq.core.files import check_places, expanduser
from msvq.core.launch import is_main_process
from msvq.core.schema import to_assignments
from msvq.evaluate.results import EvalResult, percent
from msvq.model.hub import HUB
from msvq.report.numbers import tell_knn
from msvq.report.page import WRITTEN, is_report_final, report_on, summary, write_live_report, write_report
from msvq.report.records import read_record
from msvq.runs import encoder_names
from msvq.runs.analyze import analyze
from msvq.runs.encoder import EncoderMetadata, LoadedEncoder, load_run_encoder, read_metadata
from msvq.runs.evaluate import evaluate
from msvq.runs.own_loop import save_run as save_own_run
from msvq.runs.run_dir import RunDir
from msvq.search.embedding import EmbedResult, embed, embed_source
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
    from msvq.search.search import Searched
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
        known = EvalResult.model_validate(self.record)
        guess = "" if known.chance is None else f"chance {percent(known.chance)}, "
        return f"{self.protocol}: {percent(self.top1, known.top1_error)} ({guess}top-5 {percent(self.top5)})"


@dataclass(frozen=True)
class Analysis:
    """Whether an encoder has learned anything, and what its teachers find."""

    state: str  # "good", "better", "weak", "too-short", "collapsing", "collapsed" or "unknown"
    sentence: str  # the same in words
    advice: tuple[str, ...]
    record: Mapping[str, Any] = field(repr=False)  # all that is in RUN/eval/analysis.json

    def __str__(self) -> str:
        return f"{self.state}: {self.sentence}"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a data set, and what training will make of it. Printed, it is what the command says."""

    ok: bool  # whether nothing was found that hurts
    findings: tuple[Mapping[str, Any], ...]  # each with id, severity, sentence, advice and examples
    command: str  # that trains on it
    record: Mapping[str, Any] = field(repr=False)  # all that `msvq doctor --json` prints

    def __str__(self) -> str:
        from msvq.preflight.doctor import show

        return printed(show, self.record)


@dataclass(frozen=True)
class Plan:
    """What a run will take, before it starts. Printed, it is what the command says."""

    seconds: float  # of the whole run
    memory: int | None  # bytes, where they could be measured
    advice: tuple[str, ...]
    command: str  # that starts it
    record: Mapping[str, Any] = field(repr=False)  # all that `msvq plan --json` prints

    def __str__(self) -> str:
        from msvq.preflight.plan import show

        return printed(show, self.record)


class Embedded(NamedTuple):
    """Features of the readable pictures of a source, row by row with their names and labels."""

    features: NDArray[np.float32]  # [N, d]
    names: list[str]
    labels: NDArray[np.int64]  # -1 where unknown
    skipped: list[tuple[str, str]]  # name and reason


class RunOptions(TypedDict, total=False):
    """Options of whatever opens a run and looks at it, as its command has them."""

    data: str | Path | None
    data_root: str | Path | None
    checkpoint: str  # "last", "best" or a file
    device: str | None
    precision: str | None
    display: Display | None


class SearchOptions(RunOptions, total=False):
    """Options of whatever looks through many pictures, as its command has them."""

    split: str  # "all", "train" or "test"
    download: bool


class LookOptions(SearchOptions, total=False):
    """Options of whatever makes a table of many pictures, as its command has them."""

    out: str | Path | None  # a .csv or .json of all rows
    html: str | Path | None  # a page with thumbnails


class EvalOptions(RunOptions, total=False):
    """Options of every protocol."""

    download: bool
    labels: float  # the share of the labels that is used
    seeds: int
    overrides: Sequence[str] | Mapping[str, Any]  # key=value, or a dictionary


class Finder:
    """What an encoder finds in pictures: the methods are commands of these names, with their options.

    `data`: what `--data` takes; None: the run's own pictures. Features are computed once and kept. Results have arrays,
    names and rows; in a notebook they show their pictures.
    """

    def _encoder(self, device: str | None) -> LoadedEncoder:
        raise TypeError(f"{type(self).__name__} does not say what its encoder is")

    def embed_source(
        self, source: str | Path, *, split: str = "all", workers: int | None = None, device: str | None = None
    ) -> Embedded:
        """Features of all pictures of what `--data` takes, or of a split; and which cannot be read, with the reason."""
        return Embedded(*embed_source(self._encoder(device), str(source), split=split, workers=workers))

    def write_features(
        self, out: str | Path, *, pictures: bool = False, **options: Unpack[SearchOptions]
    ) -> EmbedResult:
        """Features of all pictures to an .npz, .parquet or .csv: `msvq embed`, with its options.

        `pictures`: a .parquet holds thumbnails, a map and neighbours as well, for viewers.
        """
        return self._look(embed, {**options, "out": out}, pictures=pictures)

    def search(
        self, queries: str | Path | Sequence[str | Path], *, top: int = 20, **options: Unpack[LookOptions]
    ) -> "Searched":
        """The `top` pictures that are most like each query: a file, or the name of a picture there."""
        from msvq.search.search import search

        asked = [queries] if isinstance(queries, str | Path) else list(queries)
        return self._look(search, options, queries=asked, top=top)

    def duplicates(
        self, *, threshold: float | None = None, into: str | Path | None = None, **options: Unpack[LookOptions]
    ) -> "Duplicates":
        """Pictures that are there more than once."""
        from msvq.search.duplicates import find_duplicates

        return self._look(find_duplicates, options, threshold=threshold, into=_optional_path(into))

    def outliers(self, *, num: int | None = None, **options: Unpack[LookOptions]) -> "Outliers":
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

        exported = _optional_path(onnx)
        check_onnx(exported)
        found = self._look(classify_pictures, options, examples=examples, use=use, save=save)
        if exported is not None:
            made = found.classifier
            export_classifier(exported, found.encoder, made.weight, made.bias, made.class_names)
        return found

    def _look(self, work: Callable[..., Found], options: Mapping[str, Any], **own: Any) -> Found:
        """Do the work of a command on the pictures that its options name."""
        given = dict(options)
        outputs = {name: _optional_path(given.pop(name)) for name in ("out", "html") if name in given}
        display = given.pop("display", None)
        return work(Inputs(self._named, **_plain(given)), **own, **outputs, display=display)

    @property
    def _named(self) -> encoder_names.EncoderName:
        assert isinstance(self, RunDir | LoadedEncoder)
        return self


class Encoder(Finder, LoadedEncoder):
    """An encoder from anywhere: what `msvq.load_encoder` returns.

    `encoder.embed(pictures)` gives features [N, d]; `encoder.network` is the `nn.Module`. What it finds is asked for
    with `data`, since it has no pictures of its own unless it is a run's.
    """

    def _encoder(self, device: str | None) -> LoadedEncoder:
        return self if device is None else self.to(device, self.precision)


class Run(Finder, RunDir):
    """A finished or running pre-training: what `msvq.pretrain` returns and `msvq.load` opens."""

    def __repr__(self) -> str:
        known = tell_knn(read_record(self.path))
        knn = f", {known}" if known else ""
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

    def _encoder(self, device: str | None) -> LoadedEncoder:
        return self._loaded.to(device)

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
        return self._encoder(device).embed(images, batch_size=batch_size)

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
        options["overrides"] = [*named, *to_assignments(options.get("overrides", ()))]
        result, path = evaluate(self, protocol=protocol, **_plain(options))
        assert path is not None  # a run has a place for it
        return Accuracy(result.top1, result.top5, result.protocol, path, result.record)

    def analyze(self, *, method: str | None = None, **options: Unpack[RunOptions]) -> Analysis:
        """Did it work, and what do its teachers find? `msvq analyze`, with its options.

        `method`: the file of a method of one's own, which is run only because it is named here.
        """
        check_places(self.path, WRITTEN)
        found = analyze(self, method=method, **_plain(options))
        write_report(self.path)
        judged = found["verdict"]
        return Analysis(judged["state"], judged["sentence"], tuple(judged["advice"]), found)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about this run, `report.html` in its directory unless `out` is given; returns its path."""
        return report_on([self.path], out=_optional_path(out))

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
    return None if path is None else expanduser(path)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a path of pictures as the text that a command would have."""
    return {key: str(value) if key == "data" and value is not None else value for key, value in options.items()}


def load(name: str | Path, *, backbone: str | None = None) -> Run | Any:
    """Open a run directory. Of any other encoder, such as "hf:OWNER/NAME", what `load_encoder` gives: it embeds, too.

    `backbone`: code of your own (`file.py:function`), run only if it is named here.
    """
    run = encoder_names.find_run(name, backbone=backbone)
    # Any: whoever names a run need not tell a type checker that it is one.
    return load_encoder(name, backbone=backbone) if run is None else Run(run.path, backbone=backbone)


def load_encoder(name: str | Path, *, backbone: str | None = None, device: str | None = None) -> Encoder:
    """An encoder from anywhere: a run, `timm:NAME`, `torchvision:NAME`, a file, an export, `hf:OWNER/NAME`, "pixels".

    `backbone`: the network that a file of weights is of, where it does not tell. `device`: "auto" unless it is named.
    """
    loaded = encoder_names.load_encoder(name, backbone=backbone).to(device)
    return Encoder(**{one.name: getattr(loaded, one.name) for one in fields(loaded)})


def doctor(
    data: str | Path,
    *,
    data_root: str | Path | None = None,
    download: bool = False,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    display: Display | None = None,
) -> Diagnosis:
    """Look at the data before training: `msvq doctor`, with its options."""
    from msvq.preflight.doctor import examine_data

    flags = Flags(data=str(data), data_root=data_root, overrides=to_assignments(overrides))
    found = examine_data(flags, download=download, display=display)
    return Diagnosis(found["ok"], tuple(found["findings"]), found["command"], found)


def plan(
    data: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    method: str | None = None,
    backbone: str | None = None,
    init: str | Path | None = None,
    recipe: str | Path | None = None,
    epochs: int | None = None,
    budget: str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    device: str | None = None,
    precision: str | None = None,
    out: str | Path | None = None,
    steps: int = 5,
    display: Display | None = None,
) -> Plan:
    """What a run will take of time, memory and disk: `msvq plan`, with its options. A few steps are timed."""
    from msvq.preflight.plan import plan as plan_run

    flags = Flags(
        recipe=recipe,
        data=None if data is None else str(data),
        data_root=data_root,
        method=method,
        backbone=backbone,
        init=init,
        epochs=epochs,
        budget=budget,
        overrides=to_assignments(overrides),
        device=device,
        precision=precision,
    )
    found = plan_run(flags, out=out, steps=steps, display=display)
    needed = found["memory"].get("needed")
    return Plan(found["seconds"]["total"], needed, tuple(found["advice"]), found["command"], found)


def save_run(
    encoder: nn.Module,
    out: str | Path,
    *,
    data: str | Path,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    data_root: str | Path | None = None,
    backbone: str | None = None,
    method: str | None = None,
    overwrite: bool = False,
) -> Run:
    """A training loop of one's own ends in a run directory, so that report, search, export and evaluate work on it.

    `encoder`: any module from normalised pictures [N, 3, H, W] to features [N, d], or maps, which are averaged; of a
    method, its encoder. `data`: what it has learned from, as `--data` takes it. `size`, `mean`, `std`: how pictures
    were fed to it. `backbone`: what builds the network again, where it is no ResNet of the package: "timm:NAME",
    "torchvision:NAME", or "file.py:NAME", a function or class there. `method`: what to call the loop.
    """
    out = expanduser(out)
    save_own_run(
        encoder,
        out,
        data=str(data),
        size=size,
        mean=mean,
        std=std,
        data_root=data_root,
        backbone=backbone,
        method=method,
        overwrite=overwrite,
    )
    write_report(out)
    return load(out, backbone=backbone)


class ImageEncoder(nn.Module):
    """An encoder as a module of plain PyTorch: `ImageEncoder.from_pretrained("OWNER/NAME")`.

    Called with what `prepare` makes of pictures, it gives features [N, d]. It is in eval mode, and can be trained.
    """

    def __init__(self, encoder: LoadedEncoder) -> None:
        super().__init__()
        self.network, self.preprocessing = encoder.network.requires_grad_(), encoder.preprocessing
        self.feature_dim = encoder.feature_dim
        self.eval()

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Self:
        """A model on the hub, OWNER/NAME, or a folder: an export of msvq or a timm model."""
        is_folder = expanduser(name).is_dir()
        return cls(encoder_names.load_encoder(name if is_folder else HUB + str(name).removeprefix(HUB)))

    def prepare(self, images: Tensor) -> Tensor:
        """Pictures uint8 [N, H, W, 3] as the network takes them: resized, cut and normalised, [N, 3, size, size]."""
        return self.preprocessing.view(images)

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, d] of prepared pictures [N, 3, size, size]."""
        return cast(Tensor, self.network(x))


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
        overrides=to_assignments(overrides),
        epochs=epochs,
        budget=budget,
        seed=seed,
        device=device,
        precision=precision,
        compile=compile,
    )
    out = expanduser(out)
    trained = training.pretrain(
        flags,
        out,
        mode=chosen_mode(resume=resume, auto_resume=auto_resume, overwrite=overwrite),
        download=download,
        loggers=loggers,
        callbacks=callbacks,
        write_page=write_live_report,
        console=console or Console() if is_main_process() else Console(quiet=True),
        made_by=made_by,
    )
    if is_main_process() and (trained or not is_report_final(out)):  # it may have been killed before
        write_report(out)
    return Run(out) if trained else load(out, backbone=backbone)
