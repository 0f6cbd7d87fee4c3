"""The model card: README.md with the front matter that model hubs read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from msvq.core.console import printable
from msvq.data.sources import is_path
from msvq.data.sources.hub import PREFIX
from msvq.evaluate.results import EvalResult, read_results
from msvq.export.folder import backbone
from msvq.export.plans import Plan
from msvq.report.records import is_number
from msvq.runs.encoder import LoadedEncoder

# What the hub calls the licences that it knows; another one is "other", with its name beside it.
LICENCES = (
    *("unknown", "other", "mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "cc0-1.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "mpl-2.0"),
    *("gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "eupl-1.2", "odbl", "odc-by", "pddl", "openrail"),
)
# Of the data sets that msvq knows by name, those whose place on the hub is known to us.
ON_THE_HUB = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tinyimagenet": "zh-plus/tiny-imagenet",
}
LONGEST = 200  # characters of a name


class Measured(NamedTuple):
    """An accuracy of the very weights that are exported, in percent."""

    protocol: str  # its id
    data: str
    note: str  # what else there is to know before it is compared
    top1: float
    top5: float | None


def model_card(encoder: LoadedEncoder, plan: Plan, *, format: str, licence: str, checked: Mapping[str, Any]) -> str:
    """README.md."""
    rows = measured(encoder)
    front = yaml.safe_dump(front_matter(encoder, plan, rows, format, licence), sort_keys=False, allow_unicode=True)
    parts = [
        _opening(encoder),
        _use(format),
        _preprocessing(encoder, checked),
        _training(encoder),
        _accuracies(rows),
        _check(format, checked),
        _licence(licence),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(parts) + "\n"


def measured(encoder: LoadedEncoder) -> list[Measured]:
    """From RUN/eval, and from the log what it says of this step and no file of RUN/eval does."""
    results = [result for result in read_results(encoder.run.path / "eval") if _is_of(result, encoder)]
    own_knn = any(result.kind == "knn" and not result.transfer for result in results)
    keys = {"knn_top1": "test pictures, measured while training"} if not own_knn else {}
    keys |= {"knn_top1_val": "training pictures whose labels were held out"}
    lines = [line for line in encoder.run.metrics() if encoder.of_run and line["step"] == encoder.step]
    found = [Measured(r.protocol, r.data or "unknown data", _note(r), r.top1, r.top5) for r in results]
    return found + [row for key, note in keys.items() for row in _from_log(lines, key, note, encoder)]


def _is_of(result: EvalResult, encoder: LoadedEncoder) -> bool:
    same_step = encoder.step is None or result.step in (None, encoder.step)
    return result.checkpoint == encoder.checkpoint and same_step


def _note(result: EvalResult) -> str:
    notes = ["not the data it was trained on"] if result.transfer else []
    if result.labels < 1:
        notes.append(f"with {100 * result.labels:g} % of the labels")
    if result.num_test is not None:
        notes.append(f"{result.num_test:,} test pictures")
    return ", ".join(notes)


def _from_log(lines: Sequence[Mapping[str, Any]], key: str, note: str, encoder: LoadedEncoder) -> list[Measured]:
    """The online kNN, in the precision of the training."""
    settings, values = encoder.run.config.evaluate, [line[key] for line in lines if is_number(line.get(key))]
    name = f"online knn, k at most {settings.knn_k}, t {settings.knn_temp:g}"
    return [Measured(name, encoder.data, note, float(values[-1]), None)] if values else []


def front_matter(encoder: LoadedEncoder, plan: Plan, rows: list[Measured], format: str, licence: str) -> dict[str, Any]:
    """What a model hub reads."""
    method = encoder.method
    learning = "supervised-learning" if method == "supervised" else "self-supervised-learning"
    tags = dict.fromkeys([learning, "image-encoder", "msvq", slug(method), format])
    known = licence.lower() in LICENCES
    values: dict[str, Any] = {
        "license": licence.lower() if known else "other",
        **({} if known else {"license_name": slug(licence)}),
        "library_name": plan.library,
        "pipeline_tag": "image-feature-extraction",
        "tags": list(tags),
    }
    if (data := _hub_data(encoder)) is not None:
        values["datasets"] = [data]
    if rows:
        values["metrics"] = ["accuracy"]
        results = [_hub_result(row) for row in rows]
        values["model-index"] = [{"name": slug(encoder.run.path.resolve().name), "results": results}]
    return values


def _hub_data(encoder: LoadedEncoder) -> str | None:
    """The data set's id; a folder of one's own has none, and must not be taken for a data set of that name."""
    source = encoder.run.config.data.source
    if source.startswith(PREFIX):
        return "/".join(map(slug, source.removeprefix(PREFIX).split("/")[:2]))
    return None if is_path(source) else ON_THE_HUB.get(source, slug(source))


def _hub_result(row: Measured) -> dict[str, Any]:
    tops = {"top-1": row.top1, "top-5": row.top5}
    told = f"{row.protocol}{f' ({row.note})' if row.note else ''}"
    return {
        "task": {"type": "image-classification", "name": one_line(told)},
        "dataset": {"name": one_line(row.data), "type": slug(row.data)},
        "metrics": [
            {"type": "accuracy", "name": f"{top} accuracy, percent", "value": round(value, 2)}
            for top, value in tops.items()
            if value is not None
        ],
    }


def _opening(encoder: LoadedEncoder) -> str:
    method, data = encoder.method, encoder.data
    return (
        f"# {escaped(encoder.title)}, trained by {escaped(method)} on {escaped(data)}\n\n"
        f"An image encoder: pictures of {encoder.size} x {encoder.size} pixels go in, {encoder.feature_dim} features "
        f"come out. There is no classifier. It was trained and exported with msvq."
    )


def _use(format: str) -> str:
    return (
        "## Use\n\n    python example.py picture.jpg\n\n"
        "prints the shape of the features and the first of them. `example.py` is short, to be copied from; it needs "
        f"the libraries it imports, not msvq. The format of the weights is {escaped(format)}."
    )


def _preprocessing(encoder: LoadedEncoder, checked: Mapping[str, Any]) -> str:
    mean, std = (
        ", ".join(f"{value:g}" for value in values)
        for values in (encoder.preprocessing.mean, encoder.preprocessing.std)
    )
    return (
        f"## Preprocessing\n\nThe centre square of a picture is resized to {encoder.size} x {encoder.size} pixels of 8 "
        f"bits (bilinear, antialiased); pixels in 0..1, RGB, minus the mean ({mean}), divided by the deviation "
        f"({std}). `preprocess.py` does it with numpy and Pillow exactly as `msvq` does with files: features "
        f"of a larger JPEG differed by {checked['picture_of_another_size']:.1g} from those of `msvq`. Other tools read "
        f"`preprocessor_config.json`, which has words for the same square alone: they resize the whole picture and cut "
        f"then, and decode large JPEG files at their full size. On that JPEG, their features would differ by "
        f"{checked['if_resized_by_other_tools']:.1g}, where features go up to {checked['max_abs_feature']:.2g}."
    )


def _training(encoder: LoadedEncoder) -> str:
    config = encoder.run.config
    environment = encoder.run.environment()
    chosen = {"data": encoder.data, "data fingerprint": environment.get("data_fingerprint")}
    chosen |= {"checkpoint": encoder.checkpoint, "step": encoder.step}
    chosen |= {f"backbone.{key}": value for key, value in backbone(encoder).items()}
    chosen |= {f"method.{key}": value for key, value in config.method_options.items()}
    chosen |= {f"train.{key}": value for key, value in config.train.model_dump(mode="json").items()}
    chosen |= {"size of the training pictures": encoder.train_size, "msvq": environment.get("msvq")}
    rows = [f"| {escaped(key)} | {escaped(value)} |" for key, value in chosen.items() if value is not None]
    head = ["## Training", "", "`training.yaml` has all settings; these are those of method and training.", ""]
    return "\n".join([*head, "| setting | value |", "|---|---|", *rows])


def _accuracies(rows: list[Measured]) -> str:
    if not rows:
        return "## Accuracies\n\nNone was measured of these weights."
    lines = ["## Accuracies", "", "| protocol | data | top-1, % | top-5, % | |", "|---|---|---|---|---|"]
    for row in rows:
        top5 = "" if row.top5 is None else f"{row.top5:.2f}"
        lines.append(
            f"| {escaped(row.protocol)} | {escaped(row.data)} | {row.top1:.2f} | {top5} | {escaped(row.note)} |"
        )
    return "\n".join([*lines, "", "Numbers of different protocols or data are not to be compared."])


def _check(format: str, checked: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in checked["libraries"].items())
    batches = ", ".join(checked["by_batch_size"])
    return (
        f"## Check\n\nBefore it was called done, this {escaped(format)} export was loaded in a fresh process without "
        f"msvq ({escaped(versions)}) and compared with the original on random pictures, {batches} at once: no feature "
        f"differs by more than {checked['max_abs_difference']:.1g}. `manifest.json` has the numbers."
    )


def _licence(licence: str) -> str:
    if licence.lower() == "unknown":
        return (
            "## Licence\n\nUnknown: whoever exported these weights has not said under which licence they may be used. "
            "Ask before you use them; the pictures they were learned from may have conditions of their own."
        )
    return f"## Licence\n\n{escaped(licence)}"


def one_line(text: object) -> str:
    """Text of a run as one line that holds no commands."""
    return " ".join(printable(str(text)).split())[:LONGEST]


def escaped(text: object) -> str:
    """Text of a run as Markdown that means only itself."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$@^=])", r"\\\1", one_line(text))


def slug(text: str) -> str:
    """A name as model hubs take them: letters, digits, and - . _ within."""
    return re.sub(r"-{2,}|\.{2,}", "-", re.sub(r"[^A-Za-z0-9._-]+", "-", text)).strip("-._")[:96] or "unnamed"
