"""A machine that lacks something: a place to print to, a home, memory, the end of a file."""

import os
import pwd
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

from tests.living import children_of, is_running

from faults.processes import STREAM, photographs
from faults.small import EPOCHS, SETTINGS, Child, Row, assert_same, train, undisturbed
from msvq.cli import main
from msvq.train.resume import has_checkpoint

MEGABYTES = (200, 400, 800, 1600, 2400)  # of memory: PyTorch needs more to be loaded


def unprinted(folder: Path, quick: bool) -> Row:
    """Standard output, or all of the streams, are full, closed or no longer read while a run goes on."""
    ways: list[Callable[[], None]] = [partial(_redirect, "/dev/full", 1), partial(_close, 1), _break_pipe]
    ways += [partial(_redirect, "/dev/full", 1, 2), partial(_close, 0, 1, 2)]
    for number, way in enumerate(ways[:2] if quick else ways):
        out = folder / f"unprinted{number}"
        assert Child(partial(_command, out), way).wait() == 0, number
        assert_same(undisturbed(), out)
    told = "the run went on to its end; equal to the bit"
    return Row("output full, closed or not read any more", 2 if quick else len(ways), told)


def _command(out: Path) -> None:
    """`msvq pretrain`, as `train` would do it."""
    words = ["--data", "patterns", "--epochs", str(EPOCHS), "--precision", "fp32"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    try:
        main(["pretrain", *words, "--out", str(out)])
    except SystemExit as ended:
        os._exit(int(ended.code or 0))


def _redirect(place: str, *numbers: int) -> None:
    opened = os.open(place, os.O_WRONLY)
    for number in numbers:
        os.dup2(opened, number)


def _close(*numbers: int) -> None:
    for number in numbers:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python begins with closed streams


def _break_pipe() -> None:
    ours, theirs = os.pipe()
    os.dup2(theirs, 1)
    os.close(ours)
    os.close(theirs)


def homeless(folder: Path, quick: bool) -> Row:
    """No home in the environment, and none in the list of users."""
    out = folder / "homeless"
    assert Child(partial(train, out), _leave_home).wait() == 0
    assert_same(undisturbed(), out)
    with photographs(folder, 64) as root:
        assert Child(partial(train, folder / "packed", data=str(root), epochs=1), _leave_home).wait() == 2
    return Row("no home directory", 2, "trained; what has to be kept there, refused in a sentence")


def _leave_home() -> None:
    for name in ("HOME", "MSVQ_HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        os.environ.pop(name, None)
    mock.patch.object(pwd, "getpwuid", side_effect=KeyError("uid not found")).start()


def little_memory(folder: Path, quick: bool) -> Row:
    """`ulimit -v` leaves too little to load PyTorch."""
    for megabytes in MEGABYTES[:1] if quick else MEGABYTES:
        limit = megabytes * 2**20
        done = subprocess.run(
            [sys.executable, "-m", "msvq", "methods"],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and "there is too little memory" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    return Row("too little memory to load PyTorch", 1 if quick else len(MEGABYTES), "exit code 2 and a sentence")


def endless(folder: Path, quick: bool) -> Row:
    """Links to files that never end, and pipes, lie among the pictures."""
    with photographs(folder, 160) as root:
        whole = train(folder / "whole", data=str(root), overrides=STREAM, epochs=2).path
        for name, place in {"a.jpg": "/proc/kmsg", "0001.jpg": "/dev/zero", "z.png": "/proc/kmsg"}.items():
            (root / name).symlink_to(place)
        os.mkfifo(root / "pipe.png")
        (root / "inside").mkdir()
        (root / "inside" / "config.yaml").symlink_to("/proc/kmsg")
        out = folder / "out"
        assert Child(partial(train, out, data=str(root), overrides=STREAM, epochs=2)).wait() == 0
        listed = (out / "skipped.csv").read_text()
    assert "a.jpg" in listed and "z.png" in listed, listed
    assert_same(whole, out)
    return Row("links to files without an end among the pictures", 5, "passed over; equal to the bit")


def orphans(folder: Path, quick: bool) -> Row:
    """A run is killed whose pictures other processes decode."""
    tried, num = 1 if quick else 5, 0
    with photographs(folder, 160) as root:
        for number in range(tried):
            out = folder / f"orphans{number}"
            child = Child(partial(train, out, data=str(root), overrides=STREAM, epochs=40))
            while not has_checkpoint(out) or not children_of(child.pid):
                assert child.ended() is None
                time.sleep(0.01)
            workers = children_of(child.pid)
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            until = time.monotonic() + 10
            while any(map(is_running, workers)):
                assert time.monotonic() < until, "a process outlives who started it"
                time.sleep(0.01)
            num += len(workers)
    return Row("decoding processes whose parent is killed", num, "all ended with it")
