"""TensorBoard and Weights & Biases (offline) for real: what they keep is what metrics.jsonl says, also after a stop."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.train.callbacks import Line
from msvq.train.loggers import make_loggers, numbers

SMALL = ["backbone.width=4", "data.limit=64", "train.batch_size=16", "method.queue_size=32", "train.log_every=1"]
SMALL += ["analyze.map=0"]
Curve = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


class Stop(Exception):
    """Ends a run."""


def stop_at(step: int) -> Any:
    def stop(line: Line) -> None:
        if line["step"] == step:
            raise Stop

    return stop


def logged(run: msvq.Run, kind: str, key: str) -> Curve:
    return [(line["step"], line[key]) for line in run.metrics() if line["kind"] == kind and key in line]


def in_tensorboard(run: Path, name: str) -> Curve:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def in_wandb(run: Path, name: str) -> Curve:
    """A curve out of the newest of wandb's files: offline, each start of a run keeps the whole of it."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    newest = max((run / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    deadline, records = time.monotonic() + 30, list[Any]()
    while not any(record.HasField("exit") for record in records):  # wandb's process may still be writing
        assert time.monotonic() < deadline
        records = [messages.Record.FromString(content) for content in wandb_records(newest.read_bytes())]
    rows = [
        (int(record.history.step.num), {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item})
        for record in records
    ]
    return [(step, float(values[name])) for step, values in rows if name in values]


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The file is LevelDB's log: after 7 bytes, blocks of 32 kB with checksum, length and kind before each piece."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


READERS = {"tensorboard": in_tensorboard, "wandb": in_wandb}


def same(found: Curve, expected: Curve) -> bool:
    return [step for step, _ in found] == [step for step, _ in expected] and [y for _, y in found] == pytest.approx(
        [y for _, y in expected], rel=1e-6
    )


@pytest.mark.parametrize("name", READERS)
def test_a_logger_keeps_every_line_once_though_the_run_was_stopped(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    out = tmp_path / "x"
    with pytest.raises(Stop):
        msvq.pretrain(data="patterns", out=out, epochs=2, overrides=SMALL, callbacks=[stop_at(6)], loggers=[name])
    (out / "checkpoints" / "last.ckpt").unlink()  # as a kill would, this loses steps that were logged already
    assert READERS[name](out, "step/loss")[-1][0] == 6
    run = msvq.pretrain(out=out, resume=True, loggers=[name])
    assert logged(run, "step", "loss")[-1][0] == 8
    for kind, key in (("step", "loss"), ("epoch", "loss"), ("eval", "knn_top1")):
        assert same(READERS[name](out, f"{kind}/{key}"), logged(run, kind, key)), (kind, key)


def test_a_logger_that_is_added_later_hears_what_it_has_missed(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("tensorboard")
    run = msvq.pretrain(data="patterns", out=tmp_path / "x", epochs=1, overrides=SMALL)
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(run.path), "--resume", "--logger", "tensorboard"])
    assert not ended.value.code
    assert "tensorboard --logdir" in capsys.readouterr().out.replace("\n", " ")
    assert same(in_tensorboard(run.path, "step/loss"), logged(run, "step", "loss"))
    msvq.pretrain(data="patterns", out=run.path, epochs=1, overrides=SMALL, overwrite=True)
    assert not (run.path / "tensorboard").exists()


def test_losses_do_not_depend_on_loggers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    plain = msvq.pretrain(data="patterns", out=tmp_path / "x", epochs=1, overrides=SMALL)
    told = msvq.pretrain(
        data="patterns", out=tmp_path / "y", epochs=1, overrides=SMALL, loggers=["wandb", "tensorboard"]
    )
    assert logged(plain, "step", "loss") == logged(told, "step", "loss")
    assert (plain.path / "encoder.safetensors").read_bytes() == (told.path / "encoder.safetensors").read_bytes()


def test_wandb_that_cannot_start_says_how(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    np.savez(tmp_path / "pictures.npz", images=make_patterns(32, seed=0)[0])
    words = ["pretrain", "--data", "pictures.npz", "--out", "x", "--logger", "wandb", "--set", "backbone.width=2"]
    nobody = {"HOME": str(tmp_path), "WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9"}  # and no key
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"} | nobody
    ended = subprocess.run(
        [sys.executable, "-m", "msvq", *words],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    said = ended.stderr.strip().splitlines()
    assert said[-1].startswith("msvq: wandb cannot start: "), said
    assert said[-1].endswith("WANDB_MODE=offline keeps everything here, for 'wandb sync' later")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_wandb_obeys_no_settings_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    pytest.importorskip("wandb")
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    (logger,) = make_loggers(["wandb"])
    with pytest.raises(msvq.BadInput, match=f"wandb would obey '{folder}/settings' of the current folder; remove it"):
        logger.open(tmp_path / "run", {})


def test_names_of_loggers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--data", "patterns", "--out", str(tmp_path / "x"), "--logger", "tensorbord"])
    assert ended.value.code == 2
    assert "unknown logger 'tensorbord'; did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr("msvq.train.loggers.find_spec", lambda name: None)
    with pytest.raises(msvq.BadInput, match=r"needs wandb; pip install 'msvq\[wandb\]' gives it"):
        make_loggers(["wandb"])
    assert not (tmp_path / "x").exists()


def test_wandb_keeps_its_id_and_is_not_told_what_it_is_past(tmp_path: Path, capfd: Any) -> None:
    pytest.importorskip("wandb")
    ids = []
    for _ in range(2):
        (logger,) = make_loggers(["wandb"])
        logger.open(tmp_path, {})
        ids.append(logger.run.id)  # type: ignore[attr-defined]
        for step in (1, 5, 3, 5, 6):
            logger.on_log({"kind": "step", "step": step, "loss": float(step)})
        logger.on_train_end(None)  # type: ignore[arg-type]
        assert in_wandb(tmp_path, "step/loss") == [(1, 1.0), (5, 5.0), (6, 6.0)]
        time.sleep(1.1)  # wandb names its folders by the second
    assert ids[0] == ids[1]
    assert "less than the current step" not in capfd.readouterr().err


def test_numbers_of_a_line() -> None:
    line = {"kind": "eval", "step": 4, "epoch": 1, "rank": None, "false_negatives": {"all": 0.5, "view2": 1}}
    assert numbers(line) == {"eval/epoch": 1, "eval/false_negatives/all": 0.5, "eval/false_negatives/view2": 1}
