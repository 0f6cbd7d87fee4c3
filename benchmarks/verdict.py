"""Does the badge say what labels would? Runs of all qualities on pictures whose labels are hidden from them.

    python benchmarks/verdict.py PICTURES.npz --runs DIR --out benchmarks/verdict.json    # some 30 minutes on two cores

PICTURES.npz holds `images` uint8 [N, H, W, 3] and `labels` [N]; its name stands for them in the JSON. The runs train
without labels, in folders of DIR, and judge themselves. Then the hidden labels judge their features: leave-one-out kNN
(k 20, T 0.1) over all pictures, beside that of the same network untrained, of a colour histogram and of 8 x 8 pixels.
A run that is finished already is judged anew, not trained. What the JSON says of other pictures is kept.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

import msvq
from msvq.config.build import build_method
from msvq.core.files import write_text
from msvq.data.sources import open_dataset
from msvq.data.store import ImageDataset
from msvq.evaluate.baselines import BASELINES
from msvq.evaluate.diagnostics.verdict import copies_found, rightly_named, verdict
from msvq.evaluate.features import feature_function, fit_whitening
from msvq.evaluate.knn import nearest_others
from msvq.methods import Batch, Method
from msvq.methods.base import Loss
from msvq.model.heads import projector
from msvq.model.losses import l2_normalize
from msvq.model.teacher import Backbone, Network

NEIGHBOURS, TEMPERATURE = 20, 0.1


class OnlyAgree(Method):
    """Two views shall agree, and nothing keeps all pictures from agreeing: a method that collapses."""

    def __init__(self, backbone: Backbone, *, hidden_dim: int = 512, output_dim: int = 128) -> None:
        super().__init__()
        self.student = Network(backbone, projector(backbone.feature_dim, hidden_dim, output_dim))
        self.views = ("strong", "strong")

    def forward(self, batch: Batch) -> Loss:
        """One minus the cosine of two views."""
        z1, z2 = (l2_normalize(self.student(x)) for x in batch.views)
        return Loss(1 - (z1 * z2).sum(1).mean())


class Training(NamedTuple):
    """What to train, and how long."""

    steps: int
    recipe: str = "folder"
    method: str | None = None
    overrides: tuple[str, ...] = ()


COLLAPSING = f"{Path(__file__).resolve()}:OnlyAgree"
COLOURS_KEPT = ("augment.strong.jitter_p=0", "augment.strong.grey_p=0")
HARDLY_CUT = ("augment.strong.crop_area=[0.9,1.0]",)
RUNS = {
    "fast, 20 steps": Training(20, "fast"),
    "fast, 110 steps": Training(110, "fast"),
    "fast, 400 steps": Training(400, "fast"),
    "fast, 1,200 steps": Training(1200, "fast"),
    "fast, colours kept": Training(600, "fast", None, COLOURS_KEPT),
    "fast, hardly cut": Training(600, "fast", None, HARDLY_CUT),
    "fast, rate 100 times": Training(60, "fast", None, ("train.base_lr=10",)),
    "simclr": Training(440, method="simclr"),
    "msvq": Training(330),
    "msvq, rate 10": Training(44, overrides=("train.base_lr=10",)),
    "mocov2": Training(330, method="mocov2"),
    "views that only agree": Training(55, method=COLLAPSING, overrides=("train.base_lr=0.5",)),
}


def overrides(training: Training, side: int) -> list[str]:
    """Small crops, which are cheap, and with the paper's recipe a narrow network."""
    cheap = [f"train.steps={training.steps}", "train.warmup_epochs=1", "evaluate.every=10", "analyze.map=0"]
    if training.recipe == "fast":
        return [*cheap, f"train.resolution=[[0,{side // 2}],[0.5,{3 * side // 4}]]", *training.overrides]
    cheap += ["backbone.width=16", f"data.test_size={side}"]
    sizes = ["data.size=32", "backbone.stem=small-pool"] if side > 32 else [f"train.resolution=[[0,{side // 2}]]"]
    return [*cheap, *sizes, *training.overrides]


def leave_one_out(features: Tensor, labels: Tensor) -> float:
    """kNN accuracy in percent of each picture by all others."""
    cosines, near = nearest_others(features, NEIGHBOURS)
    weights = (cosines / TEMPERATURE).exp()
    votes = torch.zeros(len(near), int(labels.max()) + 1).scatter_add_(1, labels[near], weights)
    return 100 * float((votes.argmax(1) == labels).double().mean())


def judge(run: msvq.Run, data: ImageDataset, labels: Tensor, baselines: dict[str, float]) -> dict[str, Any]:
    """What a run says of itself, and what the labels say of it."""
    method = COLLAPSING if run.config.method_name == COLLAPSING else None
    found = run.analyze(method=method, data=str(run.config.data.source)).record
    features = feature_function(data, torch.device("cpu"), "fp32")
    untrained = build_method(run.config, data.size).encoder
    fit_whitening(untrained, features, data.train)
    knn = {
        "trained": leave_one_out(features(run.encoder, data.train), labels),
        "untrained": leave_one_out(features(untrained, data.train), labels),
        **baselines,
    }
    recall = {name: values["at_1"] for name, values in found["copies"]["recall"].items()}
    tests = [rightly_named(knn, len(labels)), copies_found(recall, found["copies"]["pictures"])]
    lines = [line for line in run.metrics() if "rank" in line]
    history = [{key: math.nan if value is None else value for key, value in line.items()} for line in lines]
    with_labels = verdict(history, tests, steps=found["step"])
    return {
        "steps": found["step"],
        "knn": {name: round(value, 2) for name, value in knn.items()},
        "recall": {name: round(value, 2) for name, value in recall.items()},
        "embedding_rank": round(found["health"].get("embedding_rank", float("nan")), 2),
        "state": found["verdict"]["state"],
        "sentence": found["verdict"]["sentence"],
        "state_with_labels": with_labels.state,
    }


def is_wrongly_green(run: dict[str, Any]) -> bool:
    """Whether a run is called good that is worse than its untrained self or than a histogram."""
    knn, states = run["knn"], (run["state"], run["state_with_labels"])
    return "good" in states and knn["trained"] < max(knn["untrained"], knn["colour_histogram"])


def table(known: dict[str, Any]) -> str:
    """The runs in the order of their kNN accuracy, in Markdown, with what one has without an encoder among them."""
    lines = []
    for name, found in known.items():
        runs = found["runs"].values()
        rows = [
            (run["knn"]["trained"], run["recall"]["trained"], title, f"{run['steps']:,}", run["state"])
            for title, run in found["runs"].items()
        ]
        for baseline, title in (("colour_histogram", "*colour histogram*"), ("pixels_8x8", "*8 x 8 pixels*")):
            rows += {(run["knn"][baseline], run["recall"][baseline], title, "", "") for run in runs}
        head = f"{name}: {found['pictures']:,} pictures, {found['classes']} classes"
        lines += [f"| {head} | steps | kNN | copies found | badge |", "|---|---|---|---|---|"]
        lines += [
            f"| {title} | {steps} | {knn:.1f} % | {recall:.1f} % | {state} |"
            for knn, recall, title, steps, state in sorted(rows, reverse=True)
        ]
        lines += ["", f"Rank correlation of the {len(runs)} runs: {found['rank_correlation']:.2f}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with np.load(options.pictures) as arrays:
        images, labels = arrays["images"], torch.from_numpy(arrays["labels"].astype(np.int64))
    hidden = options.runs / "pictures.npz"
    hidden.parent.mkdir(parents=True, exist_ok=True)
    np.savez(hidden, images=images)
    baselines = {name: leave_one_out(encode(images), labels) for name, encode in BASELINES.items()}
    judged: dict[str, Any] = {}
    for name, training in RUNS.items():
        folder = options.runs / name.replace(",", "").replace(" ", "-")
        if not (folder / "eval" / "analysis.json").is_file():
            msvq.pretrain(
                data=str(hidden),
                out=folder,
                recipe=training.recipe,
                method=training.method,
                overrides=overrides(training, images.shape[1]),
                auto_resume=True,
            )
        run = msvq.load(folder)
        judged[name] = judge(run, open_dataset(run.config.data), labels, baselines)
        print(f"{name}: {judged[name]}", flush=True)
    pairs = [(run["knn"]["trained"], run["recall"]["trained"]) for run in judged.values()]
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    known[options.pictures.stem] = {
        "pictures": len(labels),
        "classes": len(labels.unique()),
        "rank_correlation": round(float(spearmanr(pairs).statistic), 3),
        "wrongly_green": [name for name, run in judged.items() if is_wrongly_green(run)],
        "runs": judged,
    }
    write_text(options.out, json.dumps(known, indent=1) + "\n")
    print(table(known))


if __name__ == "__main__":
    main()
