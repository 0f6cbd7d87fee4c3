"""Which runs a study needs, what they are called, and which of them are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from msvq.config.resolve import read_recipe, resolve
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.schema import MayChange, diff
from msvq.methods import METHODS
from msvq.reproduce.estimate import passes
from msvq.reproduce.experiments import (
    MAIN,
    SCALES,
    STUDIES,
    WARM,
    Cell,
    check_run,
    find_scale,
    is_finished,
    make_cell,
)
from msvq.reproduce.reproduce import Sweep, plan_sweep


def names(sweep: Sweep) -> list[str]:
    return [task.cell.name for task in sweep.tasks]


def test_names_say_what_a_cell_is() -> None:
    assert Cell("mini", "cifar10", "msvq", (), 2).name == "cifar10-msvq-s2"
    changed = Cell("mini", "cifar10", "msvq", ("method.teacher_temp=0.05",), 0)
    assert changed.name == "cifar10-msvq-teacher_temp-0.05-s0"


def test_the_main_tables_have_the_same_cells() -> None:
    linear, knn = plan_sweep("linear", scale="paper"), plan_sweep("table5", scale="paper")
    assert names(linear) == names(knn)
    assert len(linear.tasks) == 14 * 4
    assert {task.protocols for task in linear.tasks} == {("linear",)}
    assert {task.protocols for task in knn.tasks} == {()}


def test_an_ablation_shares_its_default_with_the_main_table() -> None:
    main = set(names(plan_sweep("linear", scale="paper")))
    for name in ("teacher-temperature", "teacher-augmentation", "teacher-momentum", "queue-size", "view-position"):
        cells = set(names(plan_sweep(name, scale="paper")))
        shared = {f"{dataset}-msvq-s0" for dataset in SCALES["paper"].datasets}
        assert cells & main == shared, name
    assert len(names(plan_sweep("teacher-temperature", scale="paper"))) == 7 * 4
    assert len(names(plan_sweep("teacher-momentum", scale="paper"))) == 4 * 4  # each data set has a grid of its own
    assert "stl10-msvq-momentum2-0.93-s0" not in names(plan_sweep("teacher-momentum", scale="paper"))


def test_figures_share_cells_too() -> None:
    knn = set(names(plan_sweep("knn", scale="mini")))
    for figure in ("figure4", "figure5", "figure6"):
        assert set(names(plan_sweep(figure, scale="mini"))) <= knn


def test_scales_are_recipes() -> None:
    paper = Cell("paper", "stl10", "msvq", (), 0).settings()
    fp32 = ["train.precision=fp32"]
    assert paper == resolve(recipe="stl10", data="stl10", method="msvq", seed=0, overrides=fp32)
    mini = Cell("mini", "cifar10", "msvq", (), 1).settings()
    assert (mini.backbone.width, mini.train.seed, mini.train.resolution) == (16, 1, [(0.0, 16), (0.6, 24), (0.85, 32)])


def test_scale_narrow_is_the_papers_recipe_with_a_narrow_network() -> None:
    paper, narrow = (Cell(scale, "cifar10", "msvq", (), 0).settings() for scale in ("paper", "narrow"))
    changed = {change.path: change.new for change in diff(paper, narrow)}
    in_what_it_is_measured_and_saved = {"evaluate.every": 5, "train.checkpoint_every": "3m"}
    assert changed == {"backbone.width": 16, "train.precision": "bf16"} | in_what_it_is_measured_and_saved
    assert (narrow.train.epochs, narrow.train.batch_size, narrow.evaluate.knn_bank) == (200, 256, None)


def test_scale_narrow_has_rows_of_its_own_and_trains_them_in_their_order() -> None:
    rows = [f"cifar10-{row}-s0" for row in ("msvq", "ressl", "mocov2", "simclr", "mq")]
    for table in ("linear", "knn"):
        assert names(plan_sweep(table, scale="narrow")) == rows
    assert names(plan_sweep("linear", scale="narrow", methods=["byol"])) == ["cifar10-byol-s0"]
    for figure in ("knn-curves", "false-negatives", "tsne"):
        assert set(names(plan_sweep(figure, scale="narrow"))) <= set(rows[:3])
    assert {task.protocols for task in plan_sweep("linear", scale="narrow").tasks} == {("linear", "probe")}
    assert len(names(plan_sweep("queue-size", scale="narrow"))) > 3  # other tables have the paper's


def test_another_length_is_a_scale_of_its_own() -> None:
    sweep = plan_sweep("knn-curves", scale="mini", epochs=12, methods=["msvq"], seeds=1)
    assert (sweep.request.scale.name, sweep.out) == ("mini-12-epochs", Path("runs/reproduce-mini-12-epochs"))
    assert sweep.command == "msvq reproduce knn-curves --scale mini --epochs 12 --methods msvq --seeds 1"
    assert sweep.request.scale.note.startswith("12 epochs in place of 4, all else as at scale mini: CIFAR-10")
    [task] = sweep.tasks
    settings, usual = task.cell.settings(), Cell("mini", "cifar10", "msvq", (), 0).settings()
    assert settings.train.epochs == 12
    assert list(diff(usual, settings)) == [("train.epochs", 4, 12, MayChange.TRAINING)]
    assert settings.model_copy(update={"train": usual.train}) == usual  # nothing else
    assert find_scale("mini-12-epochs") == sweep.request.scale  # by the name that its files have
    assert find_scale("smoke-1-epoch").epochs == 1
    assert SCALES["mini"].lasting(4) is SCALES["mini"]  # as long as ever
    assert SCALES["paper"].lasting(200) is SCALES["paper"]


@pytest.mark.parametrize("scale", ["mini", "smoke"])
def test_small_scales_know_every_method_and_tune_none(scale: str) -> None:
    assert set(read_recipe(scale)["method_defaults"]) == set(METHODS)
    dataset = SCALES[scale].datasets[0]
    # What a small batch or network decides; all else is the paper's value on CIFAR-10.
    small = {"bn_splits", "num_classes"} | (
        {"queue_size", "hidden_dim", "output_dim", "predictor_dim"}
        & {key for key in ("queue_size", "hidden_dim", "output_dim", "predictor_dim") if scale == "smoke"}
    )
    for method in METHODS:
        ours = Cell(scale, dataset, method, (), 0).settings().method_options
        theirs = Cell("paper", "cifar10", method, (), 0).settings().method_options
        for block in (ours, theirs):
            block |= block.pop("base_options", None) or {}
        assert {k: v for k, v in ours.items() if k not in small} == {
            k: v for k, v in theirs.items() if k not in small
        }, method


def test_warm_start_is_never_the_papers_row() -> None:
    for scale in SCALES.values():
        dataset = scale.datasets[0]
        for row in MAIN:
            options = make_cell(scale, dataset, row, 0).settings().method_options
            assert options.get("warm_start", 0.0) == 0.0
        assert make_cell(scale, dataset, WARM, 0).name == f"{dataset}-msvq-warm_start-0.5-s0"
    assert "msvq-warm" not in [row.key for row in STUDIES["knn"].rows]


def test_cost_counts_passes() -> None:
    assert (passes("msvq"), passes("ressl"), passes("mocov2"), passes("msv"), passes("msvq-x5")) == (6, 4, 4, 5, 7)
    assert (passes("simclr"), passes("byol"), passes("mnn"), passes("supervised")) == (6, 8, 8, 3)


def test_outside_the_papers_scale_linear_runs_once_a_row() -> None:
    tasks = plan_sweep("linear", scale="mini", methods=["msvq"], seeds=3, linear=True).tasks
    assert [task.protocols for task in tasks] == [("probe", "linear"), ("probe",), ("probe",)]
    tasks = plan_sweep("linear", scale="mini", methods=["msvq"], seeds=2).tasks
    assert [task.protocols for task in tasks] == [("probe",), ("probe",)]


def test_a_cell_whose_config_changed_is_refused(tmp_path: Path) -> None:
    cell = Cell("smoke", "patterns", "cmsf", (), 0)
    check_run(cell, tmp_path)  # nothing there yet
    config = cell.settings().model_dump(mode="json")
    config["method"]["num_pictures"] = 640  # what a run finds out for itself
    config["data"]["root"] = "/elsewhere"
    config["train"]["compile"] = True  # faster, and the same but for rounding
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    check_run(cell, tmp_path)
    for section, key, value, told in (
        ("method", "queue_size", 1024, "1024, and it is 512 now"),
        ("train", "resolution", [[0.0, 16]], r"\[\[0.0, 16\]\], and it is None now"),
        ("train", "precision", "bf16", "'bf16', and it is 'fp32' now"),
        ("evaluate", "knn_bank", 1000, "1000, and it is None now"),
    ):
        other = {**config, section: {**config[section], key: value}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(other))
        with pytest.raises(BadInput, match=rf"ran with another {section}\.{key}: {told}"):
            check_run(cell, tmp_path)


def test_what_a_run_finds_out_is_left_open_in_every_block(tmp_path: Path) -> None:
    cell = Cell("smoke", "patterns", "unmix", ("method.base=cmsf", "data.test_size=null"), 0)
    config = cell.settings().model_dump(mode="json")
    assert (config["data"]["test_size"], config["method"]["base_options"]["num_pictures"]) == (None, None)
    config["data"]["test_size"] = config["method"]["base_options"]["num_pictures"] = 64
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    check_run(cell, tmp_path)
    config["method"]["base_options"]["queue_size"] = 3
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(BadInput, match=r"ran with another method\.base_options\.queue_size: 3, and it is \d+ now"):
        check_run(cell, tmp_path)


def test_the_difference_looks_into_blocks() -> None:
    def difference(wanted: dict[str, Any], found: dict[str, Any]) -> list[Any]:
        return list(diff(Settings(method=wanted), Settings(method=found)))

    assert difference({"a": {"b": 1, "c": None}}, {"a": {"b": 1, "c": 3}}) == [("method.a.c", None, 3, None)]
    assert difference({"a": {"b": 1}}, {"a": {"b": 1, "c": 3}}) == [("method.a.c", None, 3, None)]
    assert difference({"a": {"b": 1}}, {"a": {"b": 2}}) == [("method.a.b", 1, 2, None)]
    assert difference({"a": {"b": 1}}, {}) == [("method.a.b", 1, None, None)]


def test_finished_means_every_file(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    for name in ("encoder.safetensors", "encoder.json", "eval/analysis.json"):
        assert not is_finished(tmp_path)
        (tmp_path / name).touch()
    assert is_finished(tmp_path)
    assert not is_finished(tmp_path, ["linear"])
    (tmp_path / "eval" / "linear.json").touch()
    assert is_finished(tmp_path, ["linear"])
