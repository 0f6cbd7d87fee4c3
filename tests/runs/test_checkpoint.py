"""Checkpoints: atomic, two deep, and nothing in them is run."""

import errno
import pickle
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import torch

from msvq.core.errors import BadInput
from msvq.core.files import write_atomically, write_text
from msvq.runs import checkpoint
from msvq.runs.checkpoint import load_checkpoint, save_checkpoint, write_checkpoint


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in range(3):
        save_checkpoint(tmp_path, {"step": step, "weights": torch.ones(2) * step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]
    assert load_checkpoint(tmp_path)["step"] == 2


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_last_one_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    for step in range(2):
        save_checkpoint(tmp_path, {"step": step})
    last = tmp_path / "last.ckpt"
    if damage == "cut":
        last.write_bytes(last.read_bytes()[:100])
    else:
        last.unlink()
    assert load_checkpoint(tmp_path)["step"] == 0


def test_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no checkpoint"):
        load_checkpoint(tmp_path)


class Hostile:
    """Would make a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    torch.save({"step": Hostile(trace)}, tmp_path / "last.ckpt")
    (tmp_path / "previous.ckpt").write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(BadInput, match=r"last.ckpt and previous.ckpt cannot be read"):
        load_checkpoint(tmp_path)
    assert not trace.exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("calls", range(1, 30, 4))
def test_a_full_disk_is_told_as_such_wherever_it_strikes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    write_checkpoint(tmp_path / "x.ckpt", {"step": 1, "weights": torch.randn(50, 50)})
    before = (tmp_path / "x.ckpt").read_bytes()
    seen: list[None] = []

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            seen.append(None)
            if len(seen) >= calls:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(self.file.write(data))

    real = checkpoint._Summed.__init__
    monkeypatch.setattr(checkpoint._Summed, "__init__", lambda self, file: real(self, cast(Any, Full(file))))
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path / "x.ckpt", {"step": 2, **{f"w{i}": torch.randn(50, 50) for i in range(8)}})
    assert (tmp_path / "x.ckpt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.ckpt"]
