"""Every command as a person uses it, and every mistake they may make."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import msvq
from msvq.cli import PANELS, TASKS, app, main
from msvq.cli.options import reflowed
from msvq.methods import METHODS

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64"]
FAST = [word for setting in SMALL for word in ("--set", setting)]


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Shell:
    """Runs `msvq` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: str | Path) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        captured = self.capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_version_and_help(shell: Shell) -> None:
    assert shell("--version").out == f"msvq {msvq.__version__}\n"
    top = shell("--help").out
    for command in ("demo", "pretrain", "methods"):
        assert command in top
        answer = shell(command, "--help")
        assert answer.code == 0
        assert "Usage" in answer.out
    for option in ("--data", "--out", "--method", "--recipe", "--epochs", "--set", "--seed", "--device", "--resume"):
        assert option in shell("pretrain", "--help").out


def test_the_help_is_broken_at_the_width_of_the_terminal() -> None:
    text = """First line.

        A long sentence that goes
        on here. Example: msvq a
        or: msvq b
        """
    assert reflowed(text) == "First line.\n\nA long sentence that goes on here.\nExample: msvq a\nor: msvq b"


def test_alone_it_shows_its_help_and_nothing_else(shell: Shell) -> None:
    answer = shell()
    assert "Start with: msvq demo" in answer.out
    assert answer.err == ""
    assert "default: the recipe's" in shell("pretrain", "--help").out.replace("\n", " ")


def test_it_runs_as_a_module() -> None:
    answer = subprocess.run([sys.executable, "-m", "msvq", "--version"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, f"msvq {msvq.__version__}\n")


def test_methods_lists_them_all(shell: Shell) -> None:
    out = shell("methods").out
    for name in METHODS:
        assert name in out
    row = next(line for line in out.splitlines() if " msvq " in line)
    assert "1 strong + 3 weak" in row
    assert "arXiv 2305.05370" in row


def test_pretrain_resume_and_overwrite(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    answer = shell("pretrain", "--data", "patterns", "--out", out, "--epochs", "2", *FAST)
    assert answer.code == 0, answer.err
    assert "epoch 2/2" in answer.out  # plain lines where there is no terminal
    assert "report.html" in answer.out
    assert "\x1b[" not in answer.out
    before = (out / "encoder.safetensors").read_bytes()

    again = shell("pretrain", "--data", "patterns", "--out", out, "--epochs", "2", *FAST)
    assert again.code == 2
    assert "holds a run already" in again.err
    assert "--overwrite" in again.err

    assert shell("pretrain", "--out", out, "--resume").code == 0  # a finished run has nothing left to do
    assert (out / "encoder.safetensors").read_bytes() == before

    changed = shell("pretrain", "--out", out, "--resume", "--seed", "3")
    assert changed.code == 2
    assert "cannot resume with another train.seed: the run has 0, not 3" in changed.err
    assert "fewer epochs" in shell("pretrain", "--out", out, "--resume", "--epochs", "1").err

    replaced = shell("pretrain", "--out", out, "--overwrite", "--epochs", "1", "--seed", "4", *FAST)
    assert replaced.code == 0
    assert json.loads((out / "environment.json").read_text())["seed"] == 4
    assert (out / "encoder.safetensors").read_bytes() != before


def test_demo_runs_twice_but_leaves_other_runs_alone(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msvq.cli import demo

    def short(**options: object) -> msvq.Run:
        options["overrides"] = SMALL
        return msvq.pretrain(epochs=1, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(demo, "pretrain", short)
    for _ in range(2):
        answer = shell("demo", "--out", tmp_path / "demo")
        assert answer.code == 0, answer.err
    for words in ("raw pixels", "encoder, untrained", "encoder, trained with MSVQ", "report.html"):
        assert words in answer.out
    assert re.search(r"^run     .*demo \(in .* (s|min)\)$", answer.out, re.MULTILINE)
    assert f"next    msvq search {tmp_path / 'demo'} --query PICTURE" in answer.out
    assert len(json.loads((tmp_path / "demo" / "eval" / "demo.json").read_text())) == 4
    short(out=tmp_path / "mine")
    answer = shell("demo", "--out", tmp_path / "mine")
    assert answer.code == 2
    assert "holds a run that is not the demo's alone; choose another --out" in answer.err
    for name in ("encoder.safetensors", "report.html", "checkpoints/best.ckpt"):
        (tmp_path / "mine" / name).unlink(missing_ok=True)  # interrupted, and without labels: last.ckpt alone
    answer = shell("demo", "--out", tmp_path / "mine")
    assert answer.code == 2
    assert (tmp_path / "mine" / "checkpoints" / "last.ckpt").exists()
    (tmp_path / "mine" / "environment.json").write_text("{")
    answer = shell("demo", "--out", tmp_path / "mine")
    assert answer.code == 2
    assert "environment.json is damaged" in answer.err
    (tmp_path / "demo" / "environment.json").unlink()  # killed while it replaced itself
    for name in ("encoder.safetensors", "report.html"):
        (tmp_path / "demo" / name).unlink()
    shutil.rmtree(tmp_path / "demo" / "checkpoints")
    assert shell("demo", "--out", tmp_path / "demo").code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pretrian"], "No such command 'pretrian'. Did you mean 'pretrain', 'pretrained'?"),
        (["pretrain"], "Missing option '--out'."),
        (
            ["pretrain", "photos", "--data", "patterns", "--out", "OUT"],
            "and --data 'patterns' are two sets of pictures",
        ),
        (["doctor"], "name the pictures to look at: msvq doctor FOLDER"),
        (["doctor", "nothere"], "there is no folder 'nothere' here"),
        (["plan", "nothere"], "there is no folder 'nothere' here"),
        (["pretrain", "nothere", "--out", "OUT"], "there is no folder 'nothere' here"),
        (["pretrain", "--out", "OUT", "--epocs", "3"], "No such option: --epocs"),
        (["pretrain", "--out", "OUT", "--batch-size", "64"], "no option --batch-size; --set train.batch_size=... sets"),
        (["pretrain", "--out", "OUT", "--lr", "1"], "there is no option --lr; --set train.base_lr=... sets it"),
        (["pretrain", "--out", "OUT", "--set", "optimizer=adamw"], "did you mean train.optimiser?"),
        (["pretrain", "--out", "OUT", "--data", "nothere"], "there is no folder 'nothere' here, and no such data set"),
        (["pretrain", "--out", "OUT", "--epochs", "x"], "Invalid value for '--epochs'"),
        (["pretrain", "--out", "OUT", "--method", "mocov9"], "unknown method 'mocov9'"),
        (["pretrain", "--out", "OUT", "--data", "pattern"], "unknown data set 'pattern'; did you mean 'patterns'?"),
        (["pretrain", "--out", "OUT", "--data", "~nobody-of-that-name/photos"], "there is no file or folder '~nobody"),
        (
            ["pretrain", "--out", "OUT", "--set", "method.queue_size=100000000000000"],
            "the networks and queues do not fit",
        ),
        (["pretrain", "--out", "OUT", "--recipe", "demoo"], "unknown recipe 'demoo'; did you mean 'demo'?"),
        (["pretrain", "--out", "OUT", "--set", "train.lr=1"], "unknown setting train 'lr'"),
        (["pretrain", "--out", "OUT", "--epochs", "0"], "train.epochs: should be greater than or equal to 1, not 0"),
        (["pretrain", "--out", "OUT", "--seed", "-1"], "train.seed: should be greater than or equal to 0, not -1"),
        (
            ["pretrain", "--out", "OUT", "--precision", "fp64"],
            "train.precision: should be 'auto', 'fp32', 'bf16' or 'fp16'",
        ),
        (["pretrain", "--out", "OUT", "--device", "cuda:77"], "device 'cuda:77' is not there"),
        (["pretrain", "--out", "OUT", "--resume"], "there is no run to resume in"),
        (["pretrain", "--out", "OUT", "--resume", "--overwrite"], "give one of them"),
        (["pretrain", "--out", "OUT", "--set", "method.momentum2=1.0"], "method.momentum2: should be less than 1"),
        (
            ["pretrain", "--out", "OUT", "--set", "method.student_temp=0"],
            "method.student_temp: should be greater than 0",
        ),
        (
            ["pretrain", "--out", "OUT", "--set", "method.queue_size=32"],
            "the method's queue_size 32 is smaller than train.batch_size 64",
        ),
        (
            ["pretrain", "--out", "OUT", "--set", "method.bn_splits=7"],
            "train.batch_size 64 is not a multiple of the method's bn_splits 7",
        ),
        (["pretrain", "--out", "OUT", "--set", "data.limit=50"], "50 pictures are fewer than one batch of 64"),
        (
            ["pretrain", "--out", "OUT", "--method", "msf", "--set", "method.k=3000"],
            "the method's k 3000 is larger than its queue_size 2048",
        ),
        (
            ["pretrain", "--out", "OUT", "--method", "co2", "--set", "method.symmetric=true"],
            "unknown setting method 'symmetric'",
        ),
        (
            ["pretrain", "--out", "OUT", "--method", "unmix", "--set", "method.base=simclr"],
            "unknown base of unmix 'simclr'",
        ),
        (
            ["pretrain", "--out", "OUT", "--method", "supervised", "--set", "method.num_classes=0"],
            "method.num_classes: should be greater than or equal to 1, not 0",
        ),
        (["pretrain", "--out", "OUT", "--method", "mine.py:Mine"], "there is no file 'mine.py'"),
    ],
)
def test_a_mistake_gets_one_sentence_and_changes_nothing(
    shell: Shell, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "out"
    answer = shell(*(str(out) if a == "OUT" else a for a in arguments))
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.startswith("msvq: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_fewer_labelled_pictures_than_neighbours_are_mentioned(shell: Shell, tmp_path: Path) -> None:
    answer = shell("pretrain", "--out", tmp_path / "x", "--epochs", "1", *FAST, "--set", "data.limit=64")
    assert answer.code == 0
    assert "note: kNN uses k = 64, the number of labelled pictures" in answer.out


def test_debug_shows_the_traceback(shell: Shell, tmp_path: Path) -> None:
    answer = shell("pretrain", "--out", tmp_path / "x", "--method", "nope", "--debug")
    assert answer.code == 2
    assert "Traceback" in answer.err
    assert "unknown method 'nope'" in answer.err


@pytest.mark.parametrize(
    ("command", "place"),
    [("pretrain", "msvq.train.pretrain.pretrain"), ("export", "msvq.export.exporting.export_encoder")],
)
def test_a_full_disk_is_told_with_what_the_command_can_do(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place, full)
    monkeypatch.setattr("msvq.api.load", lambda *arguments, **options: None)
    words = [str(tmp_path)] if command == "export" else []
    answer = shell("--debug", command, *words, "--out", str(tmp_path / "x"))
    assert answer.code == 2
    assert "msvq: the disk is full; free some space" in answer.err
    assert ("--resume goes on from there" in answer.err) == (command == "pretrain")


def test_a_directory_of_other_files_is_never_touched(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    answer = shell("pretrain", "--out", tmp_path, "--overwrite", *FAST)
    assert answer.code == 2
    assert "holds files that are not a run" in answer.err
    assert (tmp_path / "letter.txt").read_text() == "dear"
    answer = shell("pretrain", "--out", tmp_path / "letter.txt", *FAST)
    assert answer.code == 2
    assert "is a file" in answer.err


def test_overwrite_keeps_what_is_not_the_runs(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert shell("pretrain", "--out", out, "--epochs", "1", *FAST).code == 0
    (out / "notes.txt").write_text("mine")
    assert shell("pretrain", "--out", out, "--epochs", "1", "--overwrite", *FAST).code == 0
    assert (out / "notes.txt").read_text() == "mine"


def test_a_bad_overwrite_leaves_the_old_run(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert shell("pretrain", "--out", out, "--epochs", "1", *FAST).code == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert shell("pretrain", "--out", out, "--overwrite", "--set", "method.bn_splits=7").code == 2
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_settings_are_listed_with_what_they_are(shell: Shell) -> None:
    some = shell("settings", "warmup")
    assert some.code == 0 and "train.warmup_epochs" in some.out and "number" in some.out
    assert "train.epochs" not in some.out
    everything = shell("settings").out
    assert all(word in everything for word in ("data.source", "backbone.whiten", "augment.strong.jitter"))
    unknown = shell("settings", "nosuch")
    assert unknown.code == 2 and "unknown setting 'nosuch'" in unknown.err


def test_the_help_lists_commands_by_task_and_options_in_groups(shell: Shell) -> None:
    top = shell("--help").out
    panels = [line.split("─ ")[1].split(" ─")[0] for line in top.splitlines() if line.startswith("╭")]
    assert panels == ["Options", *TASKS]
    assert [name for names in TASKS.values() for name in names] == [
        str(c.callback.__name__) for c in app.registered_commands if c.callback
    ]
    text = shell("pretrain", "--help").out
    assert all(f"─ {panel} ─" in text for panel in PANELS)
    assert not re.search(r"--(resume|overwrite|download)\s+<bool>", text)
    assert "--install-completion" in top


def test_pictures_in_the_wrong_place_are_told_theirs(shell: Shell) -> None:
    answer = shell("duplicates", "runs/photos", "photos")
    assert answer.code == 2 and "(photos); pictures are named with --data" in answer.err
    assert "--data" not in shell("runs", "a", "b").err


def test_the_script_for_completion_can_be_printed() -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [sys.executable, "-m", "msvq", "--show-completion", "bash"]
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0 and "complete -o default -F" in answer.stdout and "msvq" in answer.stdout
