"""Stopping a run and going on: signals, the cadence of checkpoints, and locks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.small import differences

import msvq
from msvq.cli import main
from msvq.cli.pretrain import how_to_go_on
from msvq.config.settings import Settings, parse_save_interval
from msvq.runs.checkpoint import SaveInterval, is_whole, read_checkpoint, write_checkpoint
from msvq.runs.metrics import MetricsWriter
from msvq.train.signals import Interrupted, Interruptions
from msvq.train.trainer import Trainer

SMALL = [
    *("backbone.width=4", "data.limit=160", "data.size=16", "data.test_size=16", "train.batch_size=16"),
    *("method.queue_size=32", "method.hidden_dim=16", "method.output_dim=8", "method.bn_splits=2"),
    *("train.log_every=1", "evaluate.every=2", "analyze.map=0"),
]
CODE = "import msvq.data.sources as s; s.PATTERNS_TEST = 200; from msvq.cli import main; main()"


def command(out: Path, *words: str) -> list[str]:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    return [sys.executable, "-c", CODE, "pretrain", "--out", str(out), *sets, *words]


def untimed(run: msvq.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in run.metrics()]


def last(run: Path) -> dict[str, Any]:
    state = read_checkpoint(run / "checkpoints" / "last.ckpt")
    assert state is not None
    return state


def test_cadences() -> None:
    assert parse_save_interval(500) == (500, 0.0)
    assert parse_save_interval("500") == (500, 0.0)
    assert parse_save_interval("30s") == (None, 30.0)
    assert parse_save_interval("5m") == (None, 300.0)
    assert parse_save_interval("1.5h") == (None, 5400.0)
    for wrong in (0, -3, "0s", "5 parsecs", "", "m"):
        with pytest.raises(ValueError, match="number of steps, or a time"):
            parse_save_interval(wrong)
    clock = [0.0]
    cadence = SaveInterval("30s", now=lambda: clock[0])
    clock[0] = 29.9
    assert not cadence.due(1)
    clock[0] = 30.0
    assert cadence.due(1)
    cadence.saved()
    assert not cadence.due(2)
    assert [step for step in range(1, 10) if SaveInterval(4).due(step)] == [4, 8]


def test_a_bad_cadence_is_one_sentence() -> None:
    with pytest.raises(msvq.BadInput, match=r"train\.checkpoint_every: give a number of steps, or a time"):
        msvq.pretrain(out="/nowhere", overrides=["train.checkpoint_every=often"])


def test_a_checkpoint_knows_when_a_byte_of_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    write_checkpoint(path, {"step": 3, "weights": torch.randn(20, 20)})
    whole = path.read_bytes()
    assert is_whole(path)
    loaded = torch.load(path, weights_only=True)  # a plain file of PyTorch, for whoever wants to look
    assert loaded["step"] == 3
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        place, bit = (int(torch.randint(n, (), generator=generator)) for n in (len(whole), 8))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        assert read_checkpoint(path) is None, place
        path.write_bytes(whole[:place])
        assert read_checkpoint(path) is None, place


@pytest.mark.parametrize("every", ["1", "3", "7"])
def test_the_cadence_changes_nothing_and_a_stop_within_an_epoch_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str
) -> None:
    options: dict[str, Any] = {"epochs": 2, "overrides": [*SMALL, f"train.checkpoint_every={every}"]}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    step = Trainer.train_step
    calls: list[None] = []

    def stopped(self: Trainer, *batch: Any) -> Any:
        calls.append(None)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            msvq.pretrain(out=tmp_path / "parts", **options)
    assert last(tmp_path / "parts")["step"] == 14 // int(every) * int(every)
    parts = msvq.pretrain(out=tmp_path / "parts", resume=True)
    assert not list(differences({**last(whole.path), "record": None}, {**last(parts.path), "record": None}))
    assert untimed(whole) == untimed(parts)
    steps = [line["step"] for line in parts.metrics() if line["kind"] == "step"]
    assert steps == list(range(1, 21))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    words = command(out, "--epochs", "400", "--set", "evaluate.every=1000")
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").is_file() or '"kind": "step"' not in (out / "metrics.jsonl").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "once more to stop at once" in said
    assert "msvq: interrupted: stopped and saved after" in err
    assert "--resume" in err
    assert "Traceback" not in err
    state = last(out)
    assert f"after {state['step']:,} of 4,000 steps" in err
    logged = [line["step"] for line in msvq.load(out).metrics() if line["kind"] == "step"]
    assert logged == list(range(1, state["step"] + 1))


def test_a_second_signal_stops_at_once() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with Interruptions(said.append) as interruptions:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruptions.wanted == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert len(said) == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_in_the_last_evaluation_is_obeyed_and_the_run_finished_later(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def stop(line: Mapping[str, Any]) -> None:
        if line["kind"] == "eval" and line["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped and saved after 10 of 10 steps") as stopped:
        msvq.pretrain(out=out, epochs=1, overrides=SMALL, callbacks=[stop])
    assert stopped.value.signal_number == signal.SIGTERM
    assert last(out)["step"] == 10
    assert not (out / "encoder.safetensors").exists()
    logged = untimed(msvq.Run(out))
    finished = msvq.pretrain(out=out, resume=True)
    assert untimed(finished) == logged
    assert all((out / name).is_file() for name in ("encoder.safetensors", "encoder.json", "report.html"))


def test_how_to_go_on_names_what_has_to_be_named(tmp_path: Path) -> None:
    assert how_to_go_on(tmp_path / "x", None).endswith("the same command with --overwrite starts again")
    assert how_to_go_on(tmp_path / "x", None, auto_resume=True).endswith("the same command starts again")
    (tmp_path / "x y" / "checkpoints").mkdir(parents=True)
    (tmp_path / "x y" / "checkpoints" / "last.ckpt").touch()
    (tmp_path / "x y" / "config.yaml").write_text(Settings().to_yaml())
    words = f"continue with: msvq pretrain --out '{tmp_path}/x y' --resume"
    assert how_to_go_on(tmp_path / "x y", "msvq") == words
    assert how_to_go_on(tmp_path / "x y", "mine.py:Mine") == f"{words} --method mine.py:Mine"


def test_a_damaged_line_of_the_metrics_costs_no_other(tmp_path: Path) -> None:
    log = MetricsWriter(tmp_path / "metrics.jsonl")
    for step in range(1, 6):
        log.write("step", {"step": step})
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join([*lines[:2], lines[2][:7], *lines[3:], lines[4][:9]]))
    log.rewind(4)
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 4]


def test_auto_resume_starts_goes_on_and_leaves_a_finished_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = [*command(out, "--epochs", "2", "--auto-resume")[3:]]
    step = Trainer.train_step
    calls: list[None] = []

    def stopped(self: Trainer, *batch: Any) -> Any:
        calls.append(None)
        if len(calls) in (4, 9):
            raise KeyboardInterrupt
        return step(self, *batch)

    monkeypatch.setattr(Trainer, "train_step", stopped)
    codes = []
    for _ in range(4):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--set", "train.checkpoint_every=1"])
        codes.append(ended.value.code)
    assert codes == [130, 130, 0, 0]
    assert "is finished already" in capsys.readouterr().out
    page = out / "report.html"
    whole = page.read_bytes()
    page.write_text("being judged")  # as it is if the run is killed just before its report
    os.utime(page, (0, 0))
    with pytest.raises(SystemExit):
        main(words)
    assert page.read_bytes() == whole
    for key in ("train.seed", "method.output_dim"):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--set", f"{key}=7"])
        assert ended.value.code == 2
        assert f"another {key}" in capsys.readouterr().err
    assert [line["step"] for line in msvq.load(out).metrics() if line["kind"] == "step"] == list(range(1, 21))


def test_a_finished_run_goes_on_with_more_epochs(tmp_path: Path) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=SMALL)
    longer = msvq.pretrain(out=run.path, auto_resume=True, overrides=["train.epochs=2"])
    assert longer.metrics()[-1]["step"] == 20


@pytest.mark.parametrize("words", [{"auto_resume": True}, {"overwrite": True}])
def test_another_programs_folder_is_left_alone(tmp_path: Path, words: dict[str, bool]) -> None:
    """It has a config.yaml too, and folders with our names."""
    (tmp_path / "config.yaml").write_text("data: {path: x}\ntrain: {lr: 1}\nmodel: {}\n")
    for name in ("eval", "figures", "wandb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("years of work")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(msvq.BadInput, match="holds files that are not a run"):
        msvq.pretrain(out=tmp_path, epochs=1, overrides=SMALL, **words)  # type: ignore[arg-type]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resume_changes_nothing_in_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".work.tmp").write_text("somebody's")
    with pytest.raises(msvq.BadInput, match="there is no run to resume"):
        msvq.pretrain(out=tmp_path, resume=True)
    assert (tmp_path / "checkpoints" / ".work.tmp").exists()


def test_interrupted_before_it_replaced_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = msvq.pretrain(out=tmp_path / "x", epochs=1, overrides=SMALL)

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("msvq.train.pretrain.open_main_process_first", interrupted)
    with pytest.raises(SystemExit) as ended:
        main([*command(run.path, "--overwrite")[3:]])
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert "nothing was changed" in said
    assert "--resume" not in said


def test_two_processes_cannot_write_to_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(out, "--epochs", "4000"), stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        deadline = time.monotonic() + 120
        while not (out / "checkpoints" / "last.ckpt").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(SystemExit) as ended:
            main(["pretrain", "--out", str(out), "--resume"])
        assert ended.value.code == 2
        assert f"another process ({process.pid} on " in capsys.readouterr().err
    finally:
        process.kill()
        process.wait()
    with pytest.raises(msvq.BadInput, match="fewer epochs"):  # the dead one's lock is in nobody's way
        msvq.pretrain(out=out, resume=True, epochs=3)
