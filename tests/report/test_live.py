"""The page of a run that is not over: there while it trains, says how far it is, and never in the way."""

import io
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.report.fixtures import make_run

import msvq
from msvq.report.page import write_live_report, write_report
from msvq.runs.metrics import RunProgress
from msvq.train.progress import LivePage
from msvq.train.signals import Interrupted

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64", "evaluate.every=1"]


def plain(page: Path) -> str:
    """What a reader sees of it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page.read_text().partition("<body>")[2]))


def test_a_run_has_a_page_while_it_trains_and_another_when_it_was_stopped(tmp_path: Path) -> None:
    out, pages = tmp_path / "run", []

    def look(line: Mapping[str, Any]) -> None:
        if line["kind"] == "eval":
            pages.append((out / "report.html").read_text() if (out / "report.html").exists() else "")
        if line["kind"] == "eval" and line["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        msvq.pretrain(data="patterns", out=out, epochs=2, overrides=SMALL, callbacks=[look])
    untrained, trains = pages
    assert untrained == ""  # nothing could be gone on with yet
    assert "Training: 10 of 20 steps (50 %)." in trains and " left: trained about " in trains
    assert 'data-renew="20"' in trains and '<noscript><meta http-equiv="refresh" content="20"></noscript>' in trains
    stopped = (out / "report.html").read_text()
    assert "Stopped after 10 of 20 steps (50 %). Go on with:" in plain(out / "report.html")
    assert f"msvq pretrain --out {out} --resume" in stopped
    assert "data-renew=" not in stopped and 'http-equiv="refresh"' not in stopped
    msvq.pretrain(out=out, resume=True)
    finished = (out / "report.html").read_text()
    assert 'class="progress"' not in finished and 'http-equiv="refresh"' not in finished


def test_a_page_that_fails_is_a_warning_and_the_run_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Path, standing: RunProgress) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("msvq.api.write_live_report", fail)
    said = io.StringIO()
    console = Console(file=said, width=200)
    run = msvq.pretrain(data="patterns", out=tmp_path / "run", epochs=1, overrides=SMALL, console=console)
    assert said.getvalue().count("warning: report.html fails (the disk is full); the run goes on without it") == 1
    assert (run.path / "encoder.json").is_file() and (run.path / "report.html").is_file()


def test_pages_take_a_fiftieth_of_the_time_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = [0.0], []
    monkeypatch.setattr("msvq.train.progress.time", SimpleNamespace(monotonic=lambda: now[0]))

    def write(run: Path, standing: RunProgress) -> None:
        written.append(standing.step)
        now[0] += 0.5

    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    trainer: Any = SimpleNamespace(step=0, total_steps=100, checkpoints=tmp_path / "checkpoints")
    page = LivePage(write)
    page.on_train_start(trainer)
    for _ in range(60):  # a look each second
        trainer.step, now[0] = trainer.step + 1, now[0] + 1
        page.on_log({"kind": "eval"})
    assert written == [1, 26, 51]
    page.on_train_end(trainer)
    assert written[-1] == 60  # the last is always there


def test_an_unfinished_run_shows_nothing_of_an_end_it_has_not_reached(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "encoder.json").unlink()
    (run / "eval" / "analysis.json").unlink()  # as when a run goes on that was over
    write_live_report(run, RunProgress(50, 100, 90.0, running=True))
    page = (run / "report.html").read_text()
    assert "Training: 50 of 100 steps (50 %)." in page and "90 s left: trained about" in page
    assert "<b>33.0 %</b><span>so far</span>" in page
    for absent in (">after training<", 'id="map"', "Nearest neighbours of test pictures", "Not on this page"):
        assert absent not in page, absent


def test_a_page_by_hand_says_that_the_run_is_not_finished_and_names_own_code_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a run", method="my code.py:Mine")
    (run / "encoder.json").unlink()
    seen = plain(write_report(run, figures=False))
    assert "Not finished: 99 of 99 steps (100 %). If it does not train any more, go on with:" in seen
    assert f"msvq pretrain --out &#39;{run}&#39; --resume --method &#39;my code.py:Mine&#39;" in seen
