"""The model card: README.md with the front matter that model hubs read."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from msvq.core.console import printable
from msvq.data.sources import is_path
from msvq.data.sources.hub import PREFIX
from msvq.evaluate.protocols import PROTOCOLS, protocol_id
from msvq.evaluate.results import EvalResult, read_results
from msvq.export.folder import backbone_record, fill
from msvq.export.plans import Plan
from msvq.model.pretrained import find_pretrained
from msvq.report.records import is_number
from msvq.runs.encoder import LoadedEncoder

# What the hub calls the licences that it knows; another one is "other", with its name beside it.
LICENCES = (
    *("unknown", "other", "mit", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "cc0-1.0"),
    *("cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "mpl-2.0"),
    *("gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "eupl-1.2", "odbl", "odc-by", "pddl", "openrail"),
)
# Of the data sets that msvq knows by name, those whose place on the hub is known to us.
ON_THE_HUB = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100", "tinyimagenet": "zh-plus/tiny-imagenet"}
SOMEWHERE = "OWNER/NAME"  # on the hub, in the template
LISTED = "as 'msvq pretrained' lists it"
LONGEST = 200  # characters of a name


class Measured(NamedTuple):
    """An accuracy of the very weights that are exported, in percent."""

    protocol: str  # its id
    data: str
    note: str  # what else there is to know before it is compared
    top1: float
    top5: float | None


def model_card(
    encoder: LoadedEncoder,
    plan: Plan,
    *,
    format: str,
    licence: str,
    checked: Mapping[str, Any],
    push: str | None = None,
) -> str:
    """README.md; whatever the template is given is escaped. `push`: the name that it gets on the hub."""
    rows = measured(encoder)
    front = yaml.safe_dump(front_matter(encoder, plan, rows, format, licence), sort_keys=False, allow_unicode=True)
    facts = {"format": format, "licence": licence, "checked": checked, "settings": _settings(encoder), "rows": rows}
    text = fill("card.md.jinja", finalize=escaped, encoder=encoder, library=plan.library, **facts)
    return f"---\n{front}---\n\n" + text.replace(SOMEWHERE, push or SOMEWHERE)


def measured(encoder: LoadedEncoder) -> list[Measured]:
    """From RUN/eval, and from the log what it says of this step and no file of RUN/eval does; or from our list."""
    run = encoder.run
    if run is None:
        listed = find_pretrained(encoder.name)
        known = {} if listed is None else {"knn": listed.knn, "linear": listed.linear}
        return [
            Measured(protocol_id(kind, PROTOCOLS[kind].settings(), {}), encoder.data, LISTED, top1, None)
            for kind, top1 in known.items()
            if top1 is not None
        ]
    results = [
        result
        for result in read_results(run.path / "eval")
        if result.checkpoint == encoder.checkpoint and (encoder.step is None or result.step in (None, encoder.step))
    ]
    rows = [Measured(r.protocol, r.data or "unknown data", _note(r), r.top1, r.top5) for r in results]
    own_knn = any(result.kind == "knn" and not result.transfer for result in results)
    keys = {"knn_top1": "test pictures, measured while training"} if not own_knn else {}
    keys |= {"knn_top1_val": "training pictures whose labels were held out"}
    settings = run.config.evaluate
    protocol = f"online knn, k at most {settings.knn_k}, t {settings.knn_temp:g}"  # in the precision of the training
    lines = [line for line in run.metrics() if encoder.of_run and line["step"] == encoder.step]
    for key, note in keys.items():
        values = [line[key] for line in lines if is_number(line.get(key))]
        rows += [Measured(protocol, encoder.data, note, float(value), None) for value in values[-1:]]
    return rows


def _note(result: EvalResult) -> str:
    notes = ["not the data it was trained on"] if result.transfer else []
    if result.labels < 1:
        notes.append(f"with {100 * result.labels:g} % of the labels")
    if result.num_test is not None:
        notes.append(f"{result.num_test:,} test pictures")
    return ", ".join(notes)


def front_matter(encoder: LoadedEncoder, plan: Plan, rows: list[Measured], format: str, licence: str) -> dict[str, Any]:
    """What a model hub reads."""
    method = encoder.method
    learning = "supervised-learning" if method == "supervised" else "self-supervised-learning"
    tags = dict.fromkeys([*([learning, slug(method)] if method else []), "image-encoder", "msvq", format])
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
        values["model-index"] = [{"name": slug(Path(encoder.name).resolve().name), "results": results}]
    return values


def _hub_data(encoder: LoadedEncoder) -> str | None:
    """The data set's id; a folder of one's own has none, and must not be taken for a data set of that name."""
    if encoder.run is None:
        return None
    source = encoder.run.config.data.source
    if source.startswith(PREFIX):
        return "/".join(map(slug, source.removeprefix(PREFIX).split("/")[:2]))
    return None if is_path(source) else ON_THE_HUB.get(source)


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


def _settings(encoder: LoadedEncoder) -> dict[str, Any]:
    """Those of method and training, of which some may be None."""
    network = {f"backbone.{key}": value for key, value in backbone_record(encoder).items()}
    if encoder.run is None:
        known = {"method": encoder.method or None, "data": encoder.data or None}
        return {"encoder": encoder.name if ":" in encoder.name else Path(encoder.name).name, **known, **network}
    config, environment = encoder.run.config, encoder.run.environment()
    return {
        "data": encoder.data,
        "data fingerprint": environment.get("data_fingerprint"),
        "checkpoint": encoder.checkpoint,
        "step": encoder.step,
        **network,
        **{f"method.{key}": value for key, value in config.method_options.items()},
        **{f"train.{key}": value for key, value in config.train.model_dump(mode="json").items()},
        "size of the training pictures": encoder.train_size,
        "msvq": environment.get("msvq"),
    }


def one_line(text: object) -> str:
    """Text of a run as one line that holds no commands."""
    return " ".join(printable(str(text)).split())[:LONGEST]


def escaped(text: object) -> str:
    """Text of a run as Markdown that means only itself."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$@^=])", r"\\\1", one_line(text))


def slug(text: str) -> str:
    """A name as model hubs take them: letters, digits, and - . _ within."""
    return re.sub(r"-{2,}|\.{2,}", "-", re.sub(r"[^A-Za-z0-9._-]+", "-", text)).strip("-._")[:96] or "unnamed"
