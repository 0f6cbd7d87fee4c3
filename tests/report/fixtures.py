"""A run directory with every file that a page can show, made without training anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HOSTILE = "<script>alert(1)</script>"
VIEWS = ("view2", "view3", "view4")


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def make_run(path: Path, *, method: str = "msvq", seed: int = 0, names: tuple[str, ...] = (HOSTILE, "plain")) -> Path:
    """A small but complete run; without `names` nothing has labels."""
    (path / "eval").mkdir(parents=True)
    settings = {"method": {"name": method}, "data": {"source": HOSTILE}, "train": {"epochs": 3}}
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    write_json(path / "environment.json", {"torch": HOSTILE})
    write_json(path / "encoder.json", {})
    write_metrics(path, labelled=bool(names))
    write_neighbours(path, names)
    write_map(path, names, seed=seed)
    if names:
        write_results(path, names)
        write_analysis(path, names)
        write_gallery(path, names)
    else:
        write_groups(path)
    return path


def write_metrics(path: Path, *, labelled: bool) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "step", "step": s, "epoch": s // 33 + 1, "loss": 5 - s / 100, "lr": s / 100} for s in range(0, 99, 10)
    ]
    lines += [{"kind": "epoch", "epoch": e, "step": 33 * e, "images_per_second": 100.0} for e in range(1, 4)]
    for epoch in range(4):
        line: dict[str, Any] = {"kind": "eval", "epoch": epoch, "step": 33 * epoch, "rank": 3.0 + epoch}
        line["feature_spread"] = 0.5 + epoch / 100
        if labelled:
            line["knn_top1"] = 30.0 + epoch
            line["false_negatives"] = {"view2": 1.0, "view3": 1.1, "view4": 1.2, "all": 2.0 + epoch}
        lines.append(line)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_log(run: Path, change: Any) -> None:
    """Each line of the log as `change` has it; without those of which it makes nothing."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    kept = [changed for line in lines if (changed := change(line))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))


def change_analysis(run: Path, name: str, accuracy: float) -> None:
    """Another kNN accuracy in the last evaluation."""
    path = run / "eval" / "analysis.json"
    known = json.loads(path.read_text())
    known["knn"]["accuracy"][name] = accuracy
    write_json(path, known)


def pictures(*shape: int, size: int = 12) -> Any:
    return np.random.default_rng(0).integers(256, size=(*shape, size, size, 3), dtype=np.uint8)


def write_neighbours(path: Path, names: tuple[str, ...]) -> None:
    known = bool(names)
    np.savez(
        path / "eval" / "neighbours.npz",
        queries=pictures(2),
        query_labels=np.array([0, 1]) if known else np.full(2, -1),
        before=pictures(2, 3),
        before_labels=np.array([[0, 1, 1], [0, 0, 0]]) if known else np.full((2, 3), -1),
        after=pictures(2, 3),
        after_labels=np.array([[0, 0, 0], [1, 1, 0]]) if known else np.full((2, 3), -1),
        class_names=np.array(names, dtype=str),
    )


def write_map(path: Path, names: tuple[str, ...], *, num: int = 60, seed: int = 0) -> None:
    """Pictures 0..num on a grid, so that no two lie upon each other; "after" is shuffled."""
    across = np.arange(num) % 10 / 9
    up = np.arange(num) // 10 / (num // 10 - 1)
    grid = np.stack([across, up], axis=1).astype(np.float32)
    order = np.random.default_rng(seed).permutation(num)
    np.savez(
        path / "eval" / "map.npz",
        before=grid,
        after=grid[order],
        labels=np.arange(num) % len(names) if names else np.full(num, -1),
        images=pictures(num),
        neighbours=(np.arange(num)[:, None] + np.array([2, 4, 6, 8, 10, 11])) % num,
        class_names=np.array(names, dtype=str),
        names=np.array([f"folder/{HOSTILE}{index}.png" for index in range(num)]),
    )


def write_results(path: Path, names: tuple[str, ...]) -> None:
    num = len(names)
    matrix = np.full((num, num), 2) + 10 * np.eye(num, dtype=int)
    matrix[0, num - 1] = 7
    knn = {"protocol": "knn-200-t0.1/1", "kind": "knn", "top1": 61.5, "top5": 90.0, "data": "x", "checkpoint": "last"}
    write_json(path / "eval" / "knn.json", {**knn, "confusion": matrix.tolist(), "class_names": list(names)})
    linear = {"protocol": "linear-100/1", "kind": "linear", "top1": 70.0, "top1_std": 0.25, "seeds": [0, 1]}
    write_json(path / "eval" / "linear.json", {**linear, "top1_best": 70.5, "top5": 91.0})
    tuned = {"protocol": "finetune/1", "kind": "finetune", "top1": 80.0, "top5": 99.0, "labels": 0.1}
    write_json(path / "eval" / "finetune.json", {**tuned, "scratch_top1": 60.0})


def write_analysis(path: Path, names: tuple[str, ...]) -> None:
    found: dict[str, Any] = {view: {"found": 1.5, "mass": 0.3, "entropy": 2.0} for view in VIEWS}
    found |= {"all": {"found": 2.75}, "one_hot": {"found": 0, "mass": 0, "entropy": 0, "pushed_away": 409.3}}
    found |= {"same_class_share": 0.1, "disagreement": 0.2}
    found["by_class"] = {name: {"samples": 9, "view2": 1.0, "all": 2.0, "mass": 0.2} for name in names}
    names_of = ("trained", "untrained", "colour_histogram", "pixels_8x8")
    recall = {
        name: {"at_1": 20.25 - place, "at_1_error": 0.87, "at_10": 50.0, "at_10_error": 1.2}
        for place, name in enumerate(names_of)
    }
    copies = {"pictures": 2000, "held_out": 200, "recall": recall}
    knn = {"pictures": 500, "chance": 20.0, "accuracy": dict(zip(names_of, (33.0, 30.0, 25.5, 21.5), strict=True))}
    verdict = {"state": "collapsing", "sentence": f"The rank falls, says {HOSTILE}.", "advice": ["Lower base_lr."]}
    known = {"checkpoint": "last", "verdict": verdict, "copies": copies, "knn": knn, "false_negatives": found}
    write_json(path / "eval" / "analysis.json", known)


def write_groups(path: Path) -> None:
    np.savez(
        path / "eval" / "groups.npz",
        sizes=np.array([9, 2]),
        tightness=np.array([0.75, 0.5]),
        typical=pictures(5),
        typical_groups=np.array([0, 0, 0, 1, 1]),
        typical_names=np.array([f"{HOSTILE}{index}.png" for index in range(5)]),
        odd=pictures(2),
        odd_reasons=np.array(["another colour", "far from everything"]),
        odd_names=np.array([HOSTILE, ""]),
    )


def write_gallery(path: Path, names: tuple[str, ...]) -> None:
    np.savez(
        path / "eval" / "gallery.npz",
        queries=pictures(2),
        query_labels=np.array([0, -1]),
        views=np.array(VIEWS),
        found_images=pictures(3, 2, 5),
        found_labels=np.tile(np.array([0, 0, 1, 1, -1]), (3, 2, 1)),
        found_weights=np.tile(np.array([0.4, 0.3, 0.2, 0.05, 0.01]), (3, 2, 1)),
        worst_images=pictures(1, 2),
        worst_labels=np.array([[0, 1]]),
        worst_weights=np.array([0.87]),
        class_names=np.array(names),
    )
