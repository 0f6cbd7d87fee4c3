"""Processes that are killed, stopped or lose their pictures."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from PIL import Image
from tests.living import children_of

from faults.small import SETTINGS, Child, Row, assert_same, train, undisturbed
from msvq.data.patterns import make_patterns
from msvq.runs.checkpoint import read_checkpoint
from msvq.runs.metrics import read_metrics
from msvq.train.resume import has_checkpoint

STREAM = [*(s for s in SETTINGS if not s.startswith("data.limit")), "data.mode=stream", "data.workers=2"]


def kills(folder: Path, quick: bool) -> Row:
    """SIGKILL at random instants, each followed by a resume; the end is that of a run that nobody disturbed."""
    wanted = 3 if quick else 100
    whole, out = undisturbed(), folder / "killed"
    generator, num, saving, rounds = random.Random(0), 0, 0, 0
    while num < wanted:  # a run may be over before all kills are done: then another begins
        rounds += 1
        shutil.rmtree(out, ignore_errors=True)
        finished = False
        while not finished:
            child = Child(lambda: train(out, auto_resume=True))
            if num >= wanted:
                assert child.wait() == 0
                finished = True
                break
            if generator.random() < 0.5:  # while a checkpoint is being written, if one is caught at it
                until = time.monotonic() + 5
                while time.monotonic() < until and child.ended() is None and not list(out.glob("checkpoints/.*.tmp")):
                    pass
            else:
                time.sleep(generator.uniform(0.05, 1.5))
            try:
                os.kill(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                finished = True
                break
            code = child.wait()
            assert code in (0, -signal.SIGKILL), code
            finished = code == 0
            if code == -signal.SIGKILL:
                num += 1
                saving += bool(list(out.glob("checkpoints/.*")))
        assert Child(lambda: train(out, auto_resume=True)).wait() == 0
        assert_same(whole, out)
    told = f"equal to the bit ({rounds} {'run' if rounds == 1 else 'runs'}); {saving} kills while saving"
    return Row("SIGKILL at a random instant, then resume", num, told)


def signals(folder: Path, quick: bool) -> Row:
    """SIGTERM and SIGINT: the run saves, stops, and goes on."""
    wanted = 1 if quick else 20
    whole, out, generator, num = undisturbed(), folder / "stopped", random.Random(1), 0
    while num < wanted:
        child = Child(lambda: train(out, auto_resume=True))
        while not has_checkpoint(out) and child.ended() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0.1, 0.6))
        try:
            os.kill(child.pid, generator.choice([signal.SIGTERM, signal.SIGINT]))
        except ProcessLookupError:
            shutil.rmtree(out)
            continue
        code = child.wait()
        if code == 0:  # it came in the last step, or after it
            assert_same(whole, out)
            shutil.rmtree(out)
            continue
        if code == -signal.SIGTERM:  # before the training, or after it: nothing to save
            continue
        assert code == 130, code
        num += 1
    assert Child(lambda: train(out, auto_resume=True)).wait() == 0
    assert_same(whole, out)
    return Row("SIGINT or SIGTERM, then resume", num, "saved, stopped, went on; equal to the bit")


def second_signals(folder: Path, quick: bool) -> Row:
    """Two signals, one behind the other: the second does not wait for the checkpoint of the first."""
    wanted = 1 if quick else 10
    whole, out, generator, num = undisturbed(), folder / "twice", random.Random(4), 0
    while num < wanted:
        child = Child(lambda: train(out, auto_resume=True))
        while not has_checkpoint(out) and child.ended() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 0.3))
        try:
            os.kill(child.pid, signal.SIGTERM)
            time.sleep(generator.uniform(0.0, 0.01))
            os.kill(child.pid, signal.SIGINT)
        except ProcessLookupError:
            pass
        code = child.wait()
        if code == 0:
            shutil.rmtree(out)
            continue
        assert code in (130, -signal.SIGTERM), code
        assert read_checkpoint(out / "checkpoints" / "last.ckpt") is not None
        num += 1
    assert Child(lambda: train(out, auto_resume=True)).wait() == 0
    assert_same(whole, out)
    return Row("a second signal behind the first, then resume", num, "stopped at once; equal to the bit")


@contextmanager
def photographs(folder: Path, num: int) -> Iterator[Path]:
    """A folder of pictures to stream."""
    root = folder / "photos"
    root.mkdir()
    for number, image in enumerate(make_patterns(num, seed=3)[0]):
        Image.fromarray(image).save(root / f"{number:04}.png")
    yield root


def dead_worker(folder: Path, quick: bool) -> Row:
    """The processes that decode pictures are killed while they work."""
    tried, num = 1 if quick else 10, 0
    with photographs(folder, 160) as root:
        whole = train(folder / "whole", data=str(root), overrides=STREAM, epochs=4).path
        for number in range(tried):
            out = folder / f"worker{number}"
            child = Child(partial(train, out, data=str(root), overrides=STREAM, epochs=4))
            # One after the other, when what the last was asked for is trained on: a picture on which three processes in
            # a row die would be skipped.
            killed, before = 0, 0
            while (code := child.ended()) is None:
                workers, steps = children_of(child.pid), len(read_metrics(out / "metrics.jsonl"))
                if has_checkpoint(out) and workers and killed < 3 and steps > before:
                    os.kill(workers[0], signal.SIGKILL)
                    killed, before = killed + 1, steps + 10
                time.sleep(0.02)
            assert code == 0 and killed, (code, killed)
            num += killed
            assert_same(whole, out)
    return Row("decoding process killed", num, "its pictures decoded by another; equal to the bit")


def lost_picture(folder: Path, quick: bool) -> Row:
    """Pictures are deleted while they are streamed."""
    with photographs(folder, 160) as root:
        out = folder / "lost"
        child = Child(lambda: train(out, data=str(root), overrides=STREAM, epochs=4))
        while not has_checkpoint(out) and child.ended() is None:
            time.sleep(0.01)
        for number in (3, 50, 97):
            (root / f"{number:04}.png").unlink()
        assert child.wait() == 0
        listed = (out / "skipped.csv").read_text()
    assert all(f"{number:04}.png" in listed for number in (3, 50, 97)), listed
    assert (out / "encoder.safetensors").is_file()
    return Row(
        "picture deleted while streaming", 3, "listed in skipped.csv, another took its place; the run ended well"
    )


def planted(folder: Path, quick: bool) -> Row:
    """The current folder has a file for every module of the standard library, and some more."""
    here, mark = folder / "here", folder / "mark"
    here.mkdir()
    names = {*sys.stdlib_module_names, "numpy", "PIL", "msvq", "sitecustomize", "usercustomize"}
    for name in names:
        (here / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (here / "matplotlibrc").write_text("text.usetex: True\n")
    with photographs(folder, 160) as root:
        whole = train(folder / "whole", data=str(root), overrides=STREAM, epochs=2).path
        out = folder / "out"
        assert (
            Child(lambda: train(out, data=str(root), overrides=STREAM, epochs=2), partial(os.chdir, here)).wait() == 0
        )
    assert not mark.exists(), "a module of the current folder was run"
    assert_same(whole, out)
    return Row("modules planted in the current folder", len(names), "none was run; equal to the bit")
