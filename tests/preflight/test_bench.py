"""`msvq bench`: every moment of a step belongs to one part, and nothing stays behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import msvq
from msvq.cli import main
from msvq.config.resolve import Flags, resolve
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.augment import Augment
from msvq.methods import METHODS, Method
from msvq.model.teacher import Teacher
from msvq.preflight.bench import bench
from msvq.preflight.timing import BACKWARD, FOLLOW, LEARN, PARTS, TEACH, Clock, students, time_steps, watched
from msvq.preflight.trial_run import open_trial
from msvq.runs.run_dir import processor_name

SMALL = ["backbone.width=4", "data.limit=96", "train.batch_size=32"]
QUEUE = {"msvq": ["method.queue_size=64"], "unmix": ["method.base_options.queue_size=64"]}


def flags(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def trial(method: str = "msvq", *more: str) -> Any:
    overrides = [*SMALL, *QUEUE.get(method, []), *more]
    settings = resolve(data="patterns", method=method, overrides=overrides)
    return open_trial(settings, Display())


@pytest.mark.parametrize(
    ("method", "teachers"), [("msvq", True), ("simclr", False), ("unmix", True), ("supervised", False)]
)
def test_the_parts_are_the_step(capsys: pytest.CaptureFixture[str], method: str, teachers: bool) -> None:
    options = flags(*SMALL, *QUEUE.get(method, []))
    code, out, err = answer(capsys, "bench", "--method", method, "--steps", "3", "--json", *options)
    assert code == 0, err
    report = json.loads(out)
    assert (report["method"], report["batch_size"], report["steps"]) == (method, 32, 3)
    assert (report["torch"], report["msvq"]) == (torch.__version__, msvq.__version__)
    assert report["device_name"] == (processor_name() if report["device"] == "cpu" else torch.cuda.get_device_name())
    (timing,) = report["resolutions"]
    parts = {part["name"]: part for part in timing["parts"]}
    expected = [name for name in PARTS if teachers or name not in (TEACH, FOLLOW)]
    assert list(parts) == expected
    assert all(part["milliseconds"] > 0 for part in parts.values())
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    for part in (*parts.values(), timing["step"], timing["limit"]):
        assert part["pictures_per_second"] == pytest.approx(32_000 / part["milliseconds"])
    assert timing["limit"]["milliseconds"] > 0
    assert report["peak_memory"] > 1e8


def test_a_person_sees_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "bench", "--steps", "3", *flags(*SMALL, *QUEUE["msvq"]))
    assert code == 0, err
    for words in ("augmentation", "teachers follow", "a whole step", "the limit", "pictures/s", "Most memory held"):
        assert words in out


def test_each_step_is_the_sum_of_its_parts() -> None:
    with trial() as rehearsal:
        timed = time_steps(rehearsal.trainer, 3, limit=True)
    assert (timed.pictures, len(timed.steps), len(timed.limits)) == (32, 3, 3)
    assert timed.seconds == sorted(sum(step.values()) for step in timed.steps)[1]
    assert timed.share_of_limit > 0


def test_patience_ends() -> None:
    with trial() as rehearsal:
        assert len(time_steps(rehearsal.trainer, 50, patience=0).steps) == 1


def test_the_limit_replays_every_pass_of_a_network() -> None:
    with trial("unmix") as rehearsal:
        trainer, clock = rehearsal.trainer, Clock(torch.device("cpu"))
        clock.begin("the rest")
        with watched(trainer, clock):
            trainer.train_step(*next(trainer.loader.epoch(0)), 0.1)
        outside, inside = clock.calls
        assert outside == []
        assert [(type(call.network) is Teacher, call.learns) for call in inside] == [
            (False, True),
            (True, True),
            (False, True),
        ]
        assert {call.network for call in inside if call.learns} >= {trainer.method.base.student}


def test_nothing_stays_behind() -> None:
    with trial() as rehearsal:
        trainer, method = rehearsal.trainer, rehearsal.trainer.method
        time_steps(trainer, 1, limit=True)
        with pytest.raises(BadInput), watched(trainer, Clock(torch.device("cpu"))):
            raise BadInput("in the middle")
        assert type(trainer.augment) is Augment
        for module in method.modules():
            assert not module._forward_pre_hooks
            assert not module._forward_hooks
            assert "ema_update" not in vars(module)
        assert not trainer.optimiser._optimizer_step_pre_hooks
        assert trainer.checkpoints.parent.exists()
    assert not trainer.checkpoints.parent.exists()


def test_watching_changes_no_number() -> None:
    losses = []
    for watch in (False, True):
        with trial() as rehearsal:
            trainer, clock = rehearsal.trainer, Clock(torch.device("cpu"))
            batches, clock_parts = trainer.loader.epoch(0), []
            clock.begin("the rest")
            for _ in range(3):
                if watch:
                    with watched(trainer, clock):
                        losses.append(trainer.train_step(*next(batches), 0.1)[0])
                    clock_parts.append(dict(clock.spent))
                else:
                    losses.append(trainer.train_step(*next(batches), 0.1)[0])
    assert losses[:3] == losses[3:]
    assert {LEARN, BACKWARD} <= set(clock_parts[-1])


def test_a_method_without_a_student_is_timed_by_its_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, f"{tmp_path / 'plain.py'}:Plain", Method)  # and it is forgotten afterwards
    path = tmp_path / "plain.py"
    path.write_text(
        "from msvq.methods.base import Batch, Loss, Method\n"
        "class Plain(Method):\n"
        "    def __init__(self, backbone):\n"
        "        super().__init__()\n"
        "        self.backbone, self.views = backbone, ('weak',)\n"
        "    @property\n"
        "    def encoder(self):\n"
        "        return self.backbone\n"
        "    def forward(self, batch):\n"
        "        return Loss(self.backbone(batch.views[0]).square().mean())\n"
    )
    report = bench(Flags(data="patterns", method=f"{path}:Plain", overrides=SMALL), steps=3)
    names = [part["name"] for part in report["resolutions"][0]["parts"]]
    assert LEARN in names
    assert TEACH not in names


def test_the_student_is_found_in_what_a_method_wraps() -> None:
    with trial("unmix") as rehearsal:
        method = rehearsal.trainer.method
        assert students(method) == [method.base.student, method.encoder]


def test_each_size_of_the_schedule_is_timed() -> None:
    overrides = [*SMALL, *QUEUE["msvq"], "train.resolution=[[0.0, 16], [0.75, 24]]"]
    report = bench(Flags(data="patterns", overrides=overrides), steps=3)
    assert [(r["size"], r["share_of_run"]) for r in report["resolutions"]] == [(16, 0.75), (24, 0.25)]


def test_a_batch_in_parts() -> None:
    with trial("msvq", "train.accumulate=2", "method.bn_splits=1") as rehearsal:
        trainer, clock = rehearsal.trainer, Clock(torch.device("cpu"))
        clock.begin("the rest")
        with watched(trainer, clock):
            trainer.train_step(*next(trainer.loader.epoch(0)), 0.1)
        assert [len(calls) for calls in clock.calls] == [0, 4, 4]  # each part of the batch has its own forward
        assert {len(call.inputs[0]) for calls in clock.calls for call in calls} == {16}
        assert set(time_steps(trainer, 1, limit=True).steps[0]) == set(PARTS)


def test_a_data_set_that_is_not_there_is_made_up(tmp_path: Path) -> None:
    small = ["backbone.width=4", "train.batch_size=32"]
    report = bench(Flags(recipe="cifar10", data_root=tmp_path, overrides=small), steps=3)
    assert any("CIFAR-10 is not here" in note for note in report["notes"])
    assert list(tmp_path.iterdir()) == []


def test_an_array_of_pictures_is_used_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.zeros((64, 32, 32, 3), np.uint8))
    report = bench(Flags(data=str(tmp_path / "mine.npy"), overrides=["backbone.width=4"]), steps=3)
    assert not any("made-up" in note for note in report["notes"])
    assert report["batch_size"] < 256  # fits the few pictures, as in pretrain


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "2"], "--steps 2 says little: give at least 3"),
        (["--recipe", "cifar11"], "unknown recipe 'cifar11'; did you mean 'cifar10'?"),
        (["--data", "pattern"], "unknown data set 'pattern'; did you mean 'patterns'?"),
        (["--method", "mocov9"], "unknown method 'mocov9'"),
        (["--set", "train.lr=1"], "unknown setting train 'lr'"),
        (["--device", "cuda:77"], "device 'cuda:77' is not there"),
        (["--precision", "fp64"], "train.precision: should be"),
        (["--recipe", "cifar10", "--data-root", "nowhere"], "--data-root 'nowhere' is not a folder"),
        (["--set", "method.bn_splits=7"], "train.batch_size 64 is not a multiple of the method's bn_splits 7"),
        (["--set", "method.queue_size=100000000000000"], "the networks and queues do not fit into the memory"),
    ],
)
@pytest.mark.parametrize("command", ["bench", "plan"])
def test_a_mistake_gets_one_sentence(
    capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], sentence: str
) -> None:
    code, out, err = answer(capsys, command, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.startswith("msvq: ")
    assert err.count("\n") == 1
