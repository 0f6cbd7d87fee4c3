"""Files that mean harm, through the commands that a person would use on them: nothing of them is run.

What is tried elsewhere, file by file:
  pickles in .npy and .npz                tests/data/test_arrays.py
  pickles in CIFAR batches                tests/data/test_benchmarks.py (test_a_batch_cannot_run_code)
  pickles in last.ckpt on --resume        tests/runs/test_checkpoint.py (test_a_checkpoint_cannot_run_code)
  file.py:Class in a recipe, on --resume  tests/methods/test_external.py
  file.py:function as a backbone, weights
  from the network, in a recipe           tests/test_any_backbone.py
  pickles as weights to start from        tests/model/test_initial.py
  ../, absolute names, links and devices
  in tar and zip                          tests/data/test_download.py (test_no_archive_writes_outside_its_folder)
  links out of a run directory            tests/runs/test_run_dir.py
  pictures: bombs, formats that start
  programs, pipes, links to themselves    tests/data/test_decode.py
  links in circles, pipes in folders      tests/data/test_folders.py
  pictures that kill their process        tests/data/test_workers.py
  files cut or changed                    tests/test_damage.py
  archives with another checksum          tests/data/test_benchmark_sets.py
  markup in names, in the page            tests/report/test_page.py, test_browser.py
  odd bytes in names, to the report       tests/test_own_pictures.py
  modules and settings of libraries in
  the current folder                      tests/test_current_folder.py, tests/train/test_loggers.py
"""

import csv
import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console
from tests.damage import changes, tampered_checkpoints
from tests.report.fixtures import make_run, write_json

import msvq
from msvq.api import Run
from msvq.cli import main
from msvq.config.resolve import read_config, resolve
from msvq.core.array_cache import verified, with_checksum
from msvq.core.errors import BadInput
from msvq.data.sources.hub import open_hub
from msvq.methods import METHODS
from msvq.report.page import summary, write_report
from msvq.runs.checkpoint import read_checkpoint, write_checkpoint
from msvq.runs.encoder import SEAL, load_run_encoder
from msvq.runs.run_dir import METADATA, WEIGHTS
from msvq.train.trainer import Trainer

SMALL = ["backbone.width=2", "data.limit=64", "train.batch_size=32", "method.queue_size=64", "analyze.map=0"]
FAST = [word for setting in SMALL for word in ("--set", setting)] + ["--epochs", "1"]
Says = Callable[..., tuple[int, str, str]]


class Hostile:
    """Would make a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A run to spoil."""
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that would be there if hostile code had run."""
    return tmp_path / "mark"


@pytest.fixture
def msvq_says(capsys: pytest.CaptureFixture[str]) -> Says:
    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return call


# Pickles.


def save_as_zip(value: object, path: Path) -> None:
    torch.save(value, path)


def save_as_old(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def save_plain(value: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(value))


@pytest.mark.parametrize("save", [save_as_zip, save_as_old, save_plain])
@pytest.mark.parametrize("name", ["evil.ckpt", "evil.safetensors"])
def test_a_checkpoint_or_encoder_by_path(
    run: Path, tmp_path: Path, mark: Path, msvq_says: Says, save: Callable[[object, Path], None], name: str
) -> None:
    save({"step": 1, "method": Hostile(mark)}, tmp_path / name)
    code, _, err = msvq_says("evaluate", run, "--checkpoint", tmp_path / name)
    assert code == 2 and err.count("\n") == 1 and "is damaged, or no" in err
    assert not mark.exists()


@pytest.mark.parametrize("sealed", [True, False])
def test_an_encoder_in_a_run(run: Path, mark: Path, msvq_says: Says, sealed: bool) -> None:
    save_as_zip({"conv1.weight": Hostile(mark)}, run / WEIGHTS)
    if not sealed:  # somebody has sealed it anew: safetensors alone has to notice
        known = verified(json.loads((run / METADATA).read_text()), SEAL)
        known["weights_sha256"] = hashlib.sha256((run / WEIGHTS).read_bytes()).hexdigest()
        (run / METADATA).write_text(json.dumps(with_checksum(known, SEAL)))
    code, _, err = msvq_says("evaluate", run)
    assert code == 2 and f"{WEIGHTS} is damaged" in err
    with pytest.raises(BadInput, match="is damaged"):
        _ = msvq.load(run).encoder
    assert not mark.exists()


def test_checkpoints_in_a_run(run: Path, mark: Path, msvq_says: Says) -> None:
    for path in (run / "checkpoints").glob("*.ckpt"):
        save_as_zip({"step": 1, "method": Hostile(mark)}, path)
    for words in (("pretrain", "--resume", "--out", run), ("analyze", run), ("evaluate", run, "--checkpoint", "best")):
        code, _, err = msvq_says(*words)
        assert code == 2, words
        assert "Traceback" not in err
    assert not mark.exists()


@pytest.mark.parametrize("name", ["set.npy", "set.npz"])
def test_arrays_as_a_source(tmp_path: Path, mark: Path, msvq_says: Says, name: str) -> None:
    hostile = np.array([Hostile(mark)], dtype=object)
    if name.endswith("y"):
        np.save(tmp_path / name, hostile)
    else:
        np.savez(tmp_path / name, images=hostile)
    code, _, err = msvq_says("pretrain", "--data", tmp_path / name, "--out", tmp_path / "out")
    assert code == 2 and "is not a file of numpy arrays" in err
    assert not mark.exists() and not (tmp_path / "out").exists()


def test_arrays_that_the_report_reads(run: Path, mark: Path, msvq_says: Says) -> None:
    for path in (run / "eval").glob("*.npz"):
        np.savez(path, images=np.array([Hostile(mark)], dtype=object), names=np.array([Hostile(mark)], dtype=object))
    np.savez(run / "eval" / "neighbours.npz", queries=np.array([Hostile(mark)], dtype=object))
    with suppress(SystemExit, ValueError):  # how it says so is the report's matter
        main(["report", str(run)])
    assert not mark.exists()


def test_a_hub_set_with_a_script(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nimport datasets\n")
    with pytest.raises(BadInput, match="cannot load the data set"):
        open_hub(str(tmp_path / "evil"))
    assert not mark.exists()


# Settings.


@pytest.mark.parametrize(
    "text",
    [
        "train: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{mark}]]\n",
        "train: {{epochs: !!python/object/apply:os.system ['touch {mark}']}}\n",
        "!!python/object/new:os.system ['touch {mark}']\n",
        "data: !!python/name:os.system\n",
        "data: !!python/module:antigravity\n",
    ],
)
def test_tags_in_yaml(run: Path, tmp_path: Path, mark: Path, msvq_says: Says, text: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text.format(mark=mark))
    with pytest.raises(BadInput, match="is not valid YAML in line 1"):
        resolve(recipe=recipe)
    shutil.copyfile(recipe, run / "config.yaml")
    with pytest.raises(BadInput, match="is not valid YAML in line 1"):
        read_config(run / "config.yaml")
    with pytest.raises(BadInput, match="is not a value"):
        resolve(overrides=[f"train.epochs={text[text.index('!!') :].format(mark=mark).strip().rstrip('}')}"])
    for words in (("evaluate", run), ("analyze", run), ("pretrain", "--resume", "--out", run)):
        assert msvq_says(*words)[0] == 2
    assert not mark.exists() and "antigravity" not in sys.modules


@pytest.mark.parametrize("key", ["name", "base", "method_defaults"])
def test_a_run_that_names_code(run: Path, tmp_path: Path, mark: Path, msvq_says: Says, key: str) -> None:
    evil = run / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w')\nclass Evil: ...\n")
    before, config = dict(METHODS), yaml.safe_load((run / "config.yaml").read_text())
    if key == "method_defaults":
        config["method_defaults"] = {f"{evil}:Evil": {"temp": 1}}
    else:
        config["method"] = {"name": "unmix", "base": "msvq", **{key: f"{evil}:Evil"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    opened = msvq.load(run)
    assert load_run_encoder(opened).network is not None and opened.encoder is not None
    assert msvq_says("evaluate", run, "--set", "k=5")[0] == 0
    assert msvq_says("report", run, "--out", tmp_path / "page.html")[0] == 0
    if key == "method_defaults":
        assert resolve(recipe=run / "config.yaml").method_name == "msvq"
    else:
        assert msvq_says("analyze", run)[0] == 2
        assert msvq_says("pretrain", "--resume", "--out", run)[0] == 2
        assert msvq_says("pretrain", "--recipe", run / "config.yaml", "--out", tmp_path / "again")[0] == 2
    assert not mark.exists()
    assert before == METHODS


DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000


@pytest.mark.parametrize("name", [METADATA, "environment.json"])
def test_json_that_is_nested_without_end(run: Path, name: str, msvq_says: Says) -> None:
    (run / name).write_bytes(DEEP)
    words = ("evaluate", run) if name == METADATA else ("pretrain", "--resume", "--out", run)
    code, _, err = msvq_says(*words)
    assert code == 2 and f"{name} is damaged" in err and err.count("\n") == 1


# Values of another type, or out of all bounds, where the checksum is right or there is none.


@pytest.mark.parametrize("name", ["analysis", "knn", "linear", "finetune", "demo", "environment", "config", "metrics"])
def test_a_report_on_tampered_files_is_a_page_or_a_sentence(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run")
    for arrays in (run / "eval").glob("*.npz"):  # they take the time, and have their own tests
        arrays.unlink()
    write_json(run / "eval" / "demo.json", {"untrained": 10.0, "trained": 20.0})
    (path,) = run.rglob(f"{name}.*")
    as_lines = path.suffix == ".jsonl"
    text = path.read_text()
    value = [json.loads(line) for line in text.splitlines()] if as_lines else yaml.safe_load(text)
    outcomes = Counter[str]()
    for words, changed in list(changes(value))[:: 41 if as_lines else 5]:
        path.write_text("".join(f"{json.dumps(line)}\n" for line in changed) if as_lines else json.dumps(changed))
        try:
            summary(run)
            outcomes["page"] += write_report(run, tmp_path / "page.html", figures=False).is_file()
        except BadInput as error:
            told = str(error).startswith(f"'{path}' is damaged") and len(str(error)) < 200 + len(str(path))
            outcomes["refused" if told else "odd"] += 1
        except Exception as error:
            error.add_note(words)
            raise
    assert outcomes["page"] and not outcomes["odd"]
    assert outcomes["refused"] or name in ("environment", "metrics")  # told as it is; a line less


@pytest.mark.parametrize("content", [b"\xff\xfe,\x80\n" * 3, b'file,reason\n"' + b"x" * 200_000])
def test_a_report_on_an_odd_list_of_skipped_files_is_a_page_or_a_sentence(
    run: Path, tmp_path: Path, msvq_says: Says, content: bytes
) -> None:
    (run / "skipped.csv").write_bytes(content)
    code, _, err = msvq_says("report", run, "--out", tmp_path / "page.html")
    whole = content[0] == 255
    assert (code, err) == (0, "") if whole else code == 2 and "skipped.csv' is damaged" in err
    code, out, _ = msvq_says("runs", tmp_path)
    assert code == 0 and ("damaged" in out) != whole


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "environment.json", "eval/analysis.json"])
@pytest.mark.parametrize("place", ["/dev/zero", "/proc/kmsg", "pipe"])
def test_a_run_whose_file_has_no_end_is_told_in_a_sentence(
    tmp_path: Path, msvq_says: Says, name: str, place: str
) -> None:
    run = make_run(tmp_path / "run")
    (run / name).unlink()
    if place == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(place)
    code, _, err = msvq_says("report", run, "--out", tmp_path / "page.html")
    assert code in (0, 2) and err.count("\n") <= 1 and "Traceback" not in err
    assert code == 2 or name != "config.yaml"


def test_a_run_does_not_go_on_from_a_tampered_checkpoint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(made, tmp_path / "run"))
    last = run / "checkpoints" / "last.ckpt"
    (run / "checkpoints" / "previous.ckpt").unlink()
    state = read_checkpoint(last)
    assert state is not None
    del state["format"]
    monkeypatch.setattr(Trainer, "fit", lambda self: pytest.fail("it went on"))
    tried = list(tampered_checkpoints(state))
    assert len(tried) > 25
    for words, changed in tried:
        write_checkpoint(last, changed)
        with pytest.raises(BadInput, match=r"is damaged|cannot be read|does not fit") as said:
            msvq.pretrain(out=run, resume=True, console=Console(quiet=True))
        assert "\n" not in str(said.value) and len(str(said.value)) < 300 + len(str(run)), words


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghijklmnop")
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}]}}\n" for old, new in pairwise("abcdefghijklmnop")
)


@pytest.mark.parametrize("text", [BOMB, MERGED, "a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_that_would_fill_the_memory(run: Path, tmp_path: Path, text: str, msvq_says: Says) -> None:
    (tmp_path / "bomb.yaml").write_text(text)
    with pytest.raises(BadInput, match="is not valid YAML"):
        resolve(recipe=tmp_path / "bomb.yaml")
    with (run / "config.yaml").open("a") as config:
        config.write(text)
    for words in (("report", run), ("evaluate", run), ("pretrain", "--resume", "--out", run)):
        code, _, err = msvq_says(*words)
        assert code == 2 and err.count("\n") == 1 and "config.yaml" in err


@pytest.mark.parametrize("key", ["train.epochs", "train.resolution", "data.size", "method.queue_size", "method.name"])
@pytest.mark.parametrize(
    "value", ["1" + "0" * 100, str(2**63), "0x" + "f" * 5000, "9" * 5000, f"[{'[1, 2], ' * 3000}]", "x" * 5000]
)
def test_a_value_out_of_all_bounds_is_not_repeated_in_full(key: str, value: str) -> None:
    with pytest.raises(BadInput) as said:
        resolve(overrides=[f"{key}={value}"])
    assert len(str(said.value)) < 400 and "\n" not in str(said.value)


# Names and places.


def paint(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(256, size=(16, 16, 3), dtype=np.uint8)).save(path, "PNG")


COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # to a terminal
MARKUP, ESCAPES, TURNED = "<img src=x onerror=alert(1)>", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.\u2066x"
ODD = [MARKUP, "[red]x[!red]", "=1+1,\"';", "a\nb\r\tc", TURNED, ESCAPES]


def test_names_that_are_more_than_names(tmp_path: Path, msvq_says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    root, out = tmp_path / "set", tmp_path / "run"
    for number, name in enumerate(ODD):
        for index in range(12):
            paint(root / name / f"{name.replace('/', '')}{index}.png", 100 * number + index)
        (root / name / f"{name}.png").write_bytes(b"")
    code, _, err = msvq_says("pretrain", "--data", root, "--out", out, *FAST)
    assert code == 0, err
    assert msvq_says("doctor", "--data", root)[0] in (0, 1)
    assert msvq_says("datasets")[0] == 0
    assert msvq_says("evaluate", out, "--set", "k=5")[0] == 0
    page = (out / "report.html").read_text()
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    with (out / "skipped.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "reason"] and len(rows) == 1 + len(ODD)
    assert {row[1] for row in rows[1:]} == {"is empty"}


def test_nothing_in_a_name_reaches_the_terminal_as_a_command(
    tmp_path: Path, msvq_says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    root = tmp_path / f"set{ESCAPES}{TURNED}"
    for index in range(40):
        paint(root / f"{index % 2}{ESCAPES}" / f"{index}{ESCAPES}.png", index)
    (root / f"0{ESCAPES}" / "bad.png").write_bytes(b"")
    out = tmp_path / f"run{ESCAPES}"
    words = [("pretrain", "--data", root, "--out", out, *FAST), ("doctor", "--data", root), ("datasets",)]
    words += [
        ("evaluate", out, "--set", "k=5"),
        ("report", out),
        ("evaluate", f"{out}x"),
        ("pretrain", "--data", f"{root}x"),
    ]
    for command in words:
        _, said, err = msvq_says(*command)
        assert not COMMANDS.search(said + err), command


def test_a_list_may_name_any_file_but_shows_none_that_is_no_picture(
    tmp_path: Path, msvq_says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is one's own: it may point anywhere. What is no picture is skipped, and its content is told nowhere."""
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    (tmp_path / "secret.txt").write_text("the secret")
    names = [f"{index}.png" for index in range(60)]  # all of them, below the limit
    for index, name in enumerate(names):
        paint(tmp_path / "set" / name, index)
    listed = tmp_path / "set" / "list.txt"
    listed.write_text("\n".join([*names, "../secret.txt", "/etc/passwd", "/dev/zero", "nul\0name.png"]))
    code, _, err = msvq_says("pretrain", "--data", listed, "--out", tmp_path / "run", *FAST)
    assert code == 0, err
    skipped = (tmp_path / "run" / "skipped.csv").read_text()
    assert "../secret.txt,is not a picture" in skipped and "/etc/passwd,is not a picture" in skipped
    assert "/dev/zero,is not" in skipped and skipped.count("\n") == 5
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(b"the secret" in content or b"root:x:" in content for content in files)


# The network.

GUARD = """
import socket
open({begun!r}, "w")
def refuse(self, *arguments, **options):
    open({mark!r}, "a").write("a socket\\n")
    raise OSError("no network in this test")
socket.socket.__init__ = refuse
"""


def test_no_command_opens_a_connection_by_itself(
    tmp_path: Path, mark: Path, msvq_says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard").mkdir()
    begun = tmp_path / "begun"
    (tmp_path / "guard" / "sitecustomize.py").write_text(GUARD.format(mark=str(mark), begun=str(begun)))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "guard"), *sys.path])  # for the processes that decode
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))

    def refuse(*_: object, **__: object) -> None:
        mark.touch()
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("127.0.0.1", 9))
    mark.unlink()
    for index in range(80):
        paint(tmp_path / "set" / "ab"[index % 2] / f"{index}.png", index)
    out = tmp_path / "run"
    commands: list[tuple[object, ...]] = [
        ("pretrain", "--data", tmp_path / "set", "--out", out, *FAST),
        ("evaluate", out, "--set", "k=5"),
        ("report", out),
        ("datasets",),
        ("methods",),
    ]
    for words in commands:
        code, _, err = msvq_says(*words)
        assert code == 0, (words, err)
    assert Run(out).embed_source(tmp_path / "set").features.shape == (80, 16)
    code, _, err = msvq_says("pretrain", "--data", "cifar10", "--out", tmp_path / "no")
    assert code == 2 and "--download fetches it" in err
    assert begun.exists() and not mark.exists()
