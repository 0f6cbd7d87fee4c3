"""What is tried, one function each: it raises if anything was lost, and tells what it did otherwise."""

import errno
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from PIL import Image
from tests.damage import suffer

import msvq
from faults.small import SETTINGS, Child, assert_same, differences, train
from msvq.data.patterns import make_patterns
from msvq.resuming import has_checkpoint
from msvq.train.checkpoint import read_checkpoint
from msvq.train.trainer import NonFiniteLoss, Trainer
from msvq.weights import load_encoder


class Row(NamedTuple):
    """A line of the table."""

    fault: str
    tried: int
    outcome: str


def kills(folder: Path, quick: bool) -> Row:
    """SIGKILL at random instants, each followed by a resume; the end is that of a run that nobody disturbed."""
    wanted = 3 if quick else 100
    whole, out = train(folder / "whole").path, folder / "killed"
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
    told = f"{rounds} runs, all equal to the bit; {saving} kills while saving"
    return Row("SIGKILL at a random instant, then resume", num, told)


def signals(folder: Path, quick: bool) -> Row:
    """SIGTERM and SIGINT: the run saves, stops, and goes on."""
    wanted = 1 if quick else 20
    whole, out, generator, num = train(folder / "whole").path, folder / "stopped", random.Random(1), 0
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
        if code == 0:
            assert_same(whole, out)
            shutil.rmtree(out)
            continue
        assert code in (130, -signal.SIGTERM), code
        num += 1
    assert Child(lambda: train(out, auto_resume=True)).wait() == 0
    assert_same(whole, out)
    return Row("SIGINT or SIGTERM, then resume", num, "saved, stopped, went on; equal to the bit")


def full_disk(folder: Path, quick: bool) -> Row:
    """The disk is full while a checkpoint is written: by an injected error at each of its stages."""
    whole = train(folder / "whole").path
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
        from msvq.train import checkpoint

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


def _become_nobody() -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def damage(folder: Path, quick: bool) -> list[Row]:
    """A checkpoint, a config and an encoder cut and flipped at random places."""
    places = 10 if quick else 200
    run = train(folder / "run", epochs=2)
    step = read_checkpoint(run.path / "checkpoints" / "last.ckpt")
    assert step is not None
    rows = []

    def checkpoint() -> str:
        found = read_checkpoint(run.path / "checkpoints" / "last.ckpt")
        if found is None:
            raise msvq.BadInput("damaged")
        return "the same" if not list(differences(step, found)) else "another"

    outcomes = suffer(run.path / "checkpoints" / "last.ckpt", checkpoint, "the same", num=places)
    rows.append(_told("checkpoint", outcomes, "the one before it is used"))

    def encoder() -> str:
        return str({k: v.sum().item() for k, v in load_encoder(msvq.load(run.path)).encoder.state_dict().items()})

    good = encoder()
    for name in ("encoder.safetensors", "encoder.json"):
        rows.append(_told(name, suffer(run.path / name, encoder, good, num=places), "refused in a sentence"))

    def config() -> str:
        with mock.patch.object(Trainer, "fit", _stand_still):
            train(run.path, resume=True, epochs=None, overrides=[], data=None, precision=None)
        return "went on as the checkpoint says"

    _stand_still.settings = None
    expected = config()
    wanted = _stand_still.settings
    outcomes = suffer(run.path / "config.yaml", config, expected, num=places)
    assert _stand_still.settings == wanted, "a run went on with other settings"
    rows.append(_told("config.yaml", outcomes, "refused, or the checkpoint's settings used"))
    return rows


class _StandStill:
    """In place of `Trainer.fit`: notes what a run would go on with."""

    settings: Any = None

    def __get__(self, trainer: Trainer, kind: type) -> Callable[[], None]:
        return lambda: self(trainer)

    def __call__(self, trainer: Trainer) -> None:
        keys = ("epochs", "batch_size", "base_lr", "warmup_epochs", "weight_decay", "seed", "resolution")
        now = {key: getattr(trainer.settings, key) for key in keys}
        assert self.settings in (None, now), f"{now} instead of {self.settings}"
        self.settings = now


_stand_still = _StandStill()


def _told(name: str, outcomes: Counter[Any], what: str) -> Row:
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return Row(f"{name} cut or flipped", sum(outcomes.values()), f"{told}; {what}; never wrong")


@contextmanager
def photographs(folder: Path, num: int) -> Iterator[Path]:
    """A folder of pictures to stream."""
    root = folder / "photos"
    root.mkdir()
    for number, image in enumerate(make_patterns(num, seed=3)[0]):
        Image.fromarray(image).save(root / f"{number:04}.png")
    yield root


STREAM = [*(s for s in SETTINGS if not s.startswith("data.limit")), "data.mode=stream", "data.workers=2"]


def dead_worker(folder: Path, quick: bool) -> Row:
    """The processes that decode pictures are killed while they work."""
    tried, num = 1 if quick else 10, 0
    with photographs(folder, 160) as root:
        whole = train(folder / "whole", data=str(root), overrides=STREAM, epochs=2).path
        for number in range(tried):
            out = folder / f"worker{number}"
            child = Child(partial(train, out, data=str(root), overrides=STREAM, epochs=2))
            killed = 0  # one after the other: a picture on which two processes die in a row would be skipped
            while (code := child.ended()) is None:
                workers = _children(child.pid)
                if has_checkpoint(out) and workers and killed < 3:
                    os.kill(workers[0], signal.SIGKILL)
                    killed += 1
                    time.sleep(0.2)
                time.sleep(0.02)
            assert code == 0 and killed, (code, killed)
            num += killed
            assert_same(whole, out)
    return Row("decoding process killed", num, "its pictures decoded by another; equal to the bit")


def _children(pid: int) -> list[int]:
    """The processes that any of its threads has started."""
    try:
        return [int(n) for path in Path(f"/proc/{pid}/task").glob("*/children") for n in path.read_text().split()]
    except OSError:
        return []


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


def not_a_number(folder: Path, quick: bool) -> Row:
    """The weights, and with them the loss, become infinite or no number."""
    gradient = Trainer._gradient
    for value in (float("nan"), float("inf")):
        out, calls = folder / f"bad{value}", Counter[str]()

        def poisoned(self: Trainer, *args: Any, value: float = value, calls: Counter[str] = calls, **more: Any) -> Any:
            calls["steps"] += 1
            if calls["steps"] == 30:
                for parameter in self.method.parameters():
                    parameter.data.fill_(value)
            return gradient(self, *args, **more)

        said = ""
        with mock.patch.object(Trainer, "_gradient", poisoned):
            try:
                train(out)
            except NonFiniteLoss as error:
                said = str(error)
        assert "the last good checkpoint is kept" in said, said or "the run went on with a loss that is no number"
        saved = read_checkpoint(out / "checkpoints" / "last.ckpt")
        assert saved is not None and saved["step"] == 29
        assert all(bool(np.isfinite(v.float().numpy()).all()) for v in saved["method"].values())
    return Row("loss not finite (injected)", 2, "stopped in a sentence; the last good checkpoint kept")


def clock(folder: Path, quick: bool) -> Row:
    """The clock is set back while a run goes on."""
    whole = train(folder / "whole", epochs=2, overrides=[*SETTINGS, "train.checkpoint_every=1s"]).path
    now, real = [0], (time.time, time.monotonic)

    def backwards(clock: Callable[[], float]) -> Callable[[], float]:
        def tell() -> float:
            now[0] += 1
            return clock() - (3600.0 * (now[0] // 5))

        return tell

    with mock.patch("time.time", backwards(real[0])), mock.patch("time.monotonic", backwards(real[1])):
        out = train(folder / "back", epochs=2, overrides=[*SETTINGS, "train.checkpoint_every=1s"]).path
    assert_same(whole, out)
    return Row("clock set back (injected)", now[0] // 5, "nothing happened; equal to the bit")


SCENARIOS: dict[str, Callable[[Path, bool], Row | list[Row]]] = {
    "kills": kills,
    "signals": signals,
    "full_disk": full_disk,
    "read_only": read_only,
    "damage": damage,
    "dead_worker": dead_worker,
    "lost_picture": lost_picture,
    "not_a_number": not_a_number,
    "clock": clock,
}
