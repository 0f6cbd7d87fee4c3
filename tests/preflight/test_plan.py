"""`msvq plan`: numbers that add up, and lines that say what to change."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from msvq.cli import main
from msvq.config.resolve import Flags, resolve
from msvq.core.console import Display, duration
from msvq.evaluate.knn import SIMILARITIES
from msvq.preflight.estimate import Disk, Estimate, Memory, Time, _evaluation_bytes, _state_bytes, _time_evaluation
from msvq.preflight.machine import available_memory, free_disk, group_limit, peak_memory
from msvq.preflight.plan import advise, gigabytes, plan, pretrain_command, shorter_commands
from msvq.preflight.trial_run import open_trial

SMALL = ["backbone.width=4", "data.limit=128", "train.batch_size=64", "method.queue_size=64", "method.bn_splits=1"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def flags(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("method", ["msvq", "simclr", "unmix", "supervised"])
def test_the_numbers_add_up(capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str) -> None:
    few = SMALL[:3] if method != "msvq" else SMALL
    out_folder = tmp_path / "not" / "there"
    words = ("plan", "--method", method, "--epochs", "6", "--steps", "3", "--json", "--out", out_folder)
    code, out, err = answer(capsys, *words, *flags(*few, "evaluate.every=4"))
    assert code == 0, err
    report = json.loads(out)
    seconds, disk, memory = report["seconds"], report["disk"], report["memory"]
    assert report["pictures"] == {"train": 128, "labelled": 128, "test": 200, "classes": 10}
    assert (seconds["steps_per_epoch"], seconds["epochs"], seconds["evaluations"]) == (2, 6, 3)  # epochs 0, 4 and 6
    assert seconds["training"] == pytest.approx(12 * seconds["resolutions"][0]["seconds"])
    assert seconds["epoch"] == pytest.approx(seconds["training"] / 6)
    parts = (seconds["training"], seconds["evaluation"], seconds["checkpoints"], seconds["finish"])
    assert all(part > 0 for part in parts)
    assert seconds["total"] == pytest.approx(sum(parts))
    assert memory["needed"] >= memory["peak"] > 0
    assert memory["available"] > memory["needed"]
    assert disk["run"] == 3 * disk["checkpoint"] + disk["encoder"]
    assert disk["checkpoint"] > disk["encoder"] > 0
    assert report["advice"] == ["It fits."]
    assert not out_folder.parent.exists()


def test_a_checkpoint_is_as_large_as_a_run_writes_it(tmp_path: Path) -> None:
    from msvq import pretrain

    options: dict[str, Any] = {"data": "patterns", "epochs": 1, "overrides": SMALL}
    disk = plan(Flags(**options), steps=3)["disk"]
    run = pretrain(**options, out=tmp_path / "run")
    assert disk["checkpoint"] == pytest.approx((run.path / "checkpoints" / "last.ckpt").stat().st_size, rel=0.05)
    assert disk["encoder"] == pytest.approx((run.path / "encoder.safetensors").stat().st_size, rel=0.2)


def test_a_data_set_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    few = flags("backbone.width=4", "train.batch_size=32", "method.bn_splits=1")
    code, out, err = answer(capsys, "plan", "--recipe", "cifar10", "--epochs", "2", "--steps", "3", *few)
    assert code == 0, err
    assert "50,000 pictures" in out
    assert "an epoch of 1,562 steps" in out
    assert "training, 2 epochs" in out
    assert "note: CIFAR-10 is not here" in out
    assert "--download" in out
    assert "Start it with: msvq pretrain --recipe cifar10 --epochs 2" in out.replace("\n", " ")


def test_a_data_set_that_is_still_in_its_archive(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"not opened")
    few = ["backbone.width=4", "train.batch_size=32", "method.bn_splits=1", "data.limit=64", "evaluate.knn_bank=100"]
    report = plan(Flags(recipe="cifar10", data_root=tmp_path, epochs=1, overrides=few), steps=3)
    assert report["pictures"]["test"] == 10_000
    stand_in = "as many made-up pictures of its size stand in; nothing was extracted"
    assert f"CIFAR-10 is an archive that was not opened yet: {stand_in}" in report["notes"]
    assert "--download" not in report["command"]
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-python.tar.gz"]


def test_the_labels_that_vote_in_the_end_count(tmp_path: Path) -> None:
    overrides = ["backbone.width=4", "train.batch_size=32", "method.bn_splits=1", "evaluate.knn_bank=5000"]
    settings = resolve(recipe="cifar10", data_root=tmp_path, overrides=overrides)
    with open_trial(settings, Display()) as trial:
        one, last = _time_evaluation(trial)
        assert last > 3 * one  # features of all 50,000 rather than of 5,000, beside 10,000 of the test
        assert _evaluation_bytes(trial) == 4 * (32 * (3 * 50_000 + 2 * 10_000) + SIMILARITIES)


@pytest.mark.parametrize(("optimiser", "averages"), [("sgd", 1), ("adamw", 2), ("lars", 1), ("muon", 1)])
def test_what_the_optimiser_remembers_counts(optimiser: str, averages: int) -> None:
    settings = resolve(recipe="demo", overrides=[*SMALL, f"train.optimiser={optimiser}"])
    with open_trial(settings, Display()) as trial:
        trainer = trial.trainer
        weights = sum(tensor.nbytes for tensor in trainer.method.state_dict().values())
        learning = [p.nbytes for p in trainer.method.parameters() if p.requires_grad]
        counters = 4 * len(learning) if optimiser == "adamw" else 0
        assert _state_bytes(trainer) == weights + averages * sum(learning) + counters
        trainer.train_step(*next(trainer.loader.epoch(0)), 0.0)
        assert _state_bytes(trainer) == weights + averages * sum(learning) + counters  # no more than in the beginning


def test_what_may_not_fit_is_tried_with_a_part_of_the_batch() -> None:
    report = plan(Flags(data="patterns", overrides=SMALL), steps=3, memory=10**8)
    assert any("may not fit into memory: steps of 4 of its 64 pictures" in note for note in report["notes"])
    assert report["memory"]["needed"] > 10**8
    assert report["advice"][0].startswith(f"memory: {gigabytes(report['memory']['needed'])} needed, 0.1 GB there: ")


def imagined(*, peak: float, seconds: float = 60.0, evaluation: float = 1.0, available: int = 23 * 10**9) -> Estimate:
    """The needs of a run of 200 epochs of 256 pictures, without a machine."""
    time = Time([], 100, 20_000, 200, seconds / 200, seconds, evaluation, 201, 0.0, 0.0, 0.0)
    memory = Memory(int(peak), before=10**9, fixed=10**9, evaluation=0, unheld=0)
    return Estimate(resolve(recipe="cifar10"), time, memory, Disk(10**8, 10**7, 0), available, divisions=(2, 4, 8))


def advice(needs: Estimate) -> list[str]:
    """On a large disk."""
    return advise(needs, free_for_run=10**12, free_for_pack=10**12)


def test_less_of_a_batch_at_once() -> None:
    assert imagined(peak=20e9).memory.with_batch(1 / 2) == 11 * 10**9  # type: ignore[union-attr]
    assert advice(imagined(peak=20e9)) == ["It fits."]
    assert advice(imagined(peak=20e9, seconds=9720)) == ["It fits, and takes 2.7 h."]
    lines = advice(imagined(peak=30e9))
    start = "memory: 30.0 GB needed, 23.0 GB there: "
    assert f"{start}--set train.batch_size=128 needs some 16.0 GB, and learns differently" in lines
    assert lines[0] == f"{start}--set train.accumulate=2 holds 1/2 of a step at once, some 16.0 GB"
    (line,) = advice(imagined(peak=30e9, available=10**9))
    assert "no part of a batch fits" in line


def test_the_command_starts_from_the_same_weights() -> None:
    asked = Flags(data="patterns", init="timm:test_resnet", epochs=2)
    command = pretrain_command(asked, None, download=False)
    words = "msvq pretrain --data patterns --init timm:test_resnet --epochs 2 --out runs/patterns"
    assert command == words


def test_a_shorter_run() -> None:
    days = imagined(peak=1e9, seconds=8 * 86400)
    assert advice(days) == ["200 epochs take 8.0 days: --epochs 10 takes 9.6 h"]


@pytest.mark.parametrize(
    ("seconds", "budgets"), [(1500, []), (2000, ["10m"]), (9720, ["20m", "1h"]), (8 * 86400, ["1h", "8h"])]
)
def test_what_takes_a_while_is_proposed_with_less_time(seconds: float, budgets: list[str]) -> None:
    asked = Flags(recipe="cifar10", epochs=200, overrides=["train.epochs=200", "data.limit=900"])
    commands = shorter_commands(asked, imagined(peak=1e9, seconds=seconds), "runs/x")
    assert commands == [
        f"msvq pretrain --data cifar10 --budget {budget} --set data.limit=900 --out runs/x" for budget in budgets
    ]


def test_the_plan_shows_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("msvq.preflight.plan.A_WHILE", 1e-3)
    monkeypatch.setattr("msvq.preflight.plan.BUDGETS", {"2s": 1e-3})
    code, out, err = answer(capsys, "plan", "--epochs", "1", "--steps", "3", *flags(*SMALL))
    assert code == 0, err
    assert "training, 1 epoch " in out and "after the last step" in out
    assert "It fits, and takes" in out
    told = "The best for less time: msvq pretrain --data patterns --method msvq --budget 2s --set backbone.width=4"
    assert told in out.replace("\n", " ")


def test_a_plan_by_time_pays_for_packing_and_is_told_where_it_is_slower(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pictures: Path
) -> None:
    words = ["plan", "--data", str(pictures), "--budget", "2m", "--steps", "3", *flags("backbone.width=4")]
    monkeypatch.setattr("msvq.preflight.plan.SLOWER", 0.0)
    code, out, err = answer(capsys, *words)
    assert code == 0, err
    assert "timed again: the machine is busy" in " ".join(out.split())
    monkeypatch.setattr("msvq.preflight.trial_run.time_packing", lambda data, workers: 119.0)
    code, _, err = answer(capsys, *words)
    assert code == 2 and "the time is too short" in err


def test_less_evaluation() -> None:
    (line,) = advice(imagined(peak=1e9, seconds=3000, evaluation=3000))
    assert line == "evaluation takes 50% of the run: --set evaluate.every=10 saves some 45 min"


def test_what_takes_long_gets_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msvq.preflight.plan.LONG", 1e-3)
    report = plan(Flags(data="patterns", overrides=SMALL, epochs=100), steps=3)
    assert any(line.startswith("100 epochs take ") and "--epochs 1 takes" in line for line in report["advice"])


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> None:
    monkeypatch.setattr("msvq.preflight.plan.free_disk", lambda path: 1000)
    report = plan(Flags(data=str(pictures), overrides=["backbone.width=4"], epochs=1), steps=3)
    assert any("give an --out on another disk" in line for line in report["advice"])
    assert any("--set data.mode=stream packs nothing" in line for line in report["advice"])


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two folders of pictures, which are two classes."""
    generator = np.random.default_rng(0)
    for number in range(60):
        folder = tmp_path / "pictures" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "pictures"


@pytest.mark.parametrize("mode", ["store", "stream"])
def test_a_folder_is_listed_and_not_packed(pictures: Path, mode: str) -> None:
    from msvq.core.files import packs

    before = sorted(packs().rglob("*"))
    settings = ["backbone.width=4", f"data.mode={mode}", "data.workers=1"]
    report = plan(Flags(data=str(pictures), overrides=settings, epochs=2), steps=3)
    assert sorted(packs().rglob("*")) == before
    assert report["pictures"] == {"train": 54, "labelled": 54, "test": 6, "classes": 2}
    assert report["disk"]["pack"] == (60 * 32 * 32 * 3 if mode == "store" else 0)
    assert (report["seconds"]["packing"] > 0) is (mode == "store")
    assert any("train.batch_size is" in note for note in report["notes"])  # as pretrain would change it
    assert report["command"].endswith("--out runs/pictures")


def test_pictures_without_labels(pictures: Path) -> None:
    settings = ["backbone.width=4", "data.labels=none"]
    report = plan(Flags(data=str(pictures), overrides=settings, epochs=2), steps=3)
    assert report["pictures"] == {"train": 60, "labelled": 0, "test": 0, "classes": 0}
    assert report["seconds"]["evaluation"] > 0


def test_the_schedule_of_sizes_is_weighed_by_its_shares() -> None:
    overrides = [*SMALL, "train.resolution=[[0.0, 16], [0.5, 24]]"]
    seconds = plan(Flags(data="patterns", overrides=overrides, epochs=4), steps=3)["seconds"]
    small, large = seconds["resolutions"]
    assert (small["size"], large["size"]) == (16, 24)
    assert seconds["training"] == pytest.approx(8 * (small["seconds"] + large["seconds"]) / 2)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "groups"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "memory.max").write_text("5000\n")
    (root / "a" / "b" / "memory.max").write_text("max\n")
    own.write_text("0::/a/b\n")
    assert group_limit(root, own) == 5000
    (root / "memory" / "c").mkdir(parents=True)
    (root / "memory" / "c" / "memory.limit_in_bytes").write_text("3000\n")
    own.write_text("4:memory:/c\n0::/\n")
    assert group_limit(root, own) == 3000
    assert group_limit(root, tmp_path / "absent") is None


def test_what_the_machine_tells(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert (peak_memory(cpu) or 0) > 1e7
    assert (available_memory(cpu) or 0) > 1e7
    assert free_disk(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.05, "50 ms"), (1.5, "1.5 s"), (119, "119 s"), (150, "2.5 min"), (9000, "2.5 h"), (432000, "5.0 days")],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert gigabytes(2_500_000_000) == "2.5 GB"
