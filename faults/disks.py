"""Disks that are full, directories that may not be written to, and links that lead out of them."""

import errno
import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from faults.small import Child, Row, assert_same, train, undisturbed
from msvq.core.files import LOCK, RUN_FILES, WRITTEN_IN_PLACE
from msvq.runs.checkpoint import read_checkpoint
from msvq.train.resume import has_checkpoint


def full_disk(folder: Path, quick: bool) -> Row:
    """The disk is full while a checkpoint is written: by an injected error at each of its stages."""
    whole = undisturbed()
    places, generator = ("write", "fsync", "replace"), random.Random(2)
    tried = 1 if quick else 12
    for number in range(tried):
        out, calls = folder / f"full{number}", generator.randrange(1, 60)
        again = partial(train, out, auto_resume=True)
        assert Child(again, partial(_fail_after, places[number % 3], calls, errno.ENOSPC)).wait() == 2
        assert not [p for p in out.glob("checkpoints/.*.tmp") if p.stat().st_size and number % 3 == 0]
        assert Child(again).wait() == 0
        assert_same(whole, out)
        shutil.rmtree(out)
    return Row(
        "disk full while saving (injected)", tried, "exit code 2, the checkpoint before kept; equal after resume"
    )


def _fail_after(stage: str, calls: int, code: int) -> None:
    """Let the n-th call of a stage of saving fail, and all that follow."""
    count = [0]

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] >= calls:
                raise OSError(code, os.strerror(code), "disk")
            return real(*args, **options)

        return call

    if stage == "fsync":
        mock.patch("os.fsync", failing(os.fsync)).start()
    elif stage == "replace":
        mock.patch.object(Path, "replace", failing(Path.replace)).start()
    else:
        from msvq.runs import checkpoint

        real = checkpoint._Summed

        class Full(real):  # type: ignore[misc, valid-type]
            def __init__(self, file: Any) -> None:
                super().__init__(mock.Mock(wraps=file, write=failing(file.write)))

        mock.patch.object(checkpoint, "_Summed", Full).start()


def read_only(folder: Path, quick: bool) -> Row:
    """A directory that may not be written to, as a user who is not root."""
    out = train(folder / "mine", epochs=1).path
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    folders = [out, *(path for path in out.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        code = Child(lambda: train(out, resume=True, epochs=2), _become_nobody).wait()
        fresh = Child(lambda: train(out / "new", epochs=1), _become_nobody).wait()
    finally:
        for path in folders:
            path.chmod(0o755)
    assert (code, fresh) == (2, 2), (code, fresh)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    return Row("directory that cannot be written", 2, "refused in a sentence; nothing changed")


def lost_permission(folder: Path, quick: bool) -> Row:
    """The right to write is taken from a run, as a user who is not root, while it is saving."""
    whole, generator = undisturbed(), random.Random(3)
    tried = 1 if quick else 10
    for number in range(tried):
        home = folder / f"home{number}"
        home.mkdir()
        home.chmod(0o777)
        out = home / "run"
        again = partial(train, out, auto_resume=True)
        child = Child(again, _become_nobody)
        while not has_checkpoint(out) and child.ended() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 0.3))
        (out / "checkpoints").chmod(0o555)
        code = child.wait()
        kept = read_checkpoint(out / "checkpoints" / "last.ckpt")
        (out / "checkpoints").chmod(0o755)
        assert code == 2, code
        assert kept is not None
        assert Child(again, _become_nobody).wait() == 0
        assert_same(whole, out)
        shutil.rmtree(home)
    told = "exit code 2, the checkpoint before kept; equal after resume"
    return Row("right to write lost while saving", tried, told)


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def links(folder: Path, quick: bool) -> Row:
    """Each file and folder of a run in turn is a link to somebody else's, when the run is replaced or continued."""
    whole = train(folder / "whole", epochs=1, init=train(folder / "first", epochs=1).path).path
    out, others, tried = folder / "run", folder / "others", 0
    for name in [LOCK, *RUN_FILES][:: 6 if quick else 1]:
        refused = RUN_FILES.get(name) is not None or name in WRITTEN_IN_PLACE
        for options in ({"overwrite": True}, {"resume": True, "epochs": 2}):
            shutil.copytree(whole, out)
            others.mkdir()
            (others / "precious").write_text("mine")
            place, target = out / name, others / name
            if place.exists():
                place.rename(target)
            elif RUN_FILES.get(name) is not None:
                target.mkdir()
            else:
                target.write_text("mine")
            place.symlink_to(target)
            before = {path: path.read_bytes() for path in others.rglob("*") if path.is_file()}
            assert Child(partial(train, out, **options)).wait() == (2 if refused else 0), (name, options)
            after = {path: path.read_bytes() for path in others.rglob("*") if path.is_file()}
            assert after == before, (name, options)
            shutil.rmtree(out)
            shutil.rmtree(others)
            tried += 1
    return Row("link out of the run directory", tried, "refused in a sentence, or replaced; never followed")
