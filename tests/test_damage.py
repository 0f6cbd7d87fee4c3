"""Files cut and changed at 200 random places each: refused in a sentence or made anew, never wrong.

Checkpoints, metrics and configs have theirs in tests/train; archives in tests/data/test_download.py; pictures in
tests/data/test_decode.py; CIFAR batches in tests/data/test_benchmarks.py.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file
from tests.damage import PLACES, flip, suffer, write_new

import msvq
from msvq.api import Run
from msvq.cli import main
from msvq.core.array_cache import verified, with_checksum
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.pack import FILES, open_pack
from msvq.data.sources.arrays import read_arrays
from msvq.data.sources.folders import list_folder
from msvq.data.workers import Result, Task, perform
from msvq.runs.encoder import SEAL, load_run_encoder
from msvq.runs.run_dir import METADATA, WEIGHTS

SMALL = ["backbone.width=2", "data.limit=64", "train.batch_size=32", "method.queue_size=64", "analyze.map=0"]


def fingerprint(*parts: object) -> str:
    """A hash of arrays, and of whatever else has a text."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


# Packed pictures.


class InProcess:
    """Decodes here: starting processes 2,000 times would take minutes."""

    def __init__(self, num: int | None) -> None:
        pass

    def map(
        self, task: Task, chunks: Iterable[Sequence[str | bytes]], *, side: int, resizing: None, file: str | None
    ) -> Iterator[Result]:
        row = 0
        for chunk in chunks:
            yield perform(task, chunk, side, None if file is None else (file, row))
            row += len(chunk)

    def close(self) -> None:
        pass


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures and one that is none, to be packed in a place of their own without waiting for the disk."""
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("msvq.data.pack.Workers", InProcess)
    monkeypatch.setattr("os.fsync", lambda _: None)
    root = tmp_path / "pictures"
    root.mkdir()
    generator = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(generator.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(root / name)
    (root / "d.png").write_bytes(b"")
    return root


def packed(root: Path, console: Console | None = None, *, pixels: bool = True) -> str:
    """Everything that a pack says."""
    display = Display(console)
    pack = open_pack(list_folder(root), side=8, pixels=pixels, max_skipped=0.5, num_workers=1, display=display)
    return fingerprint(pack.images, pack.kept, list(pack.names), pack.skipped, pack.digest)


@pytest.mark.parametrize("name", [*FILES, "pack.json"])
def test_a_damaged_pack_is_made_again(pictures: Path, tmp_path: Path, name: str) -> None:
    good, said = packed(pictures), io.StringIO()
    path = next((tmp_path / "home" / "packed").glob(f"*/*/{name}"))
    console = Console(file=said, width=500)
    outcomes = suffer(path, lambda: packed(pictures, console), good, restore=False)
    assert outcomes == {"mended": 2 * PLACES}
    note = f"the packed pictures of {pictures} are damaged ({name}): packing them again"
    assert said.getvalue().splitlines() == [note] * 2 * PLACES
    assert packed(pictures) == good


def test_a_stream_checks_all_but_the_pixels_that_it_does_not_read(pictures: Path, tmp_path: Path) -> None:
    packed(pictures)
    good = packed(pictures, pixels=False)
    folder = next((tmp_path / "home" / "packed").glob("*/*/pack.json")).parent
    assert suffer(folder / "images.u8", lambda: packed(pictures, pixels=False), good, num=20) == {"same": 40}
    assert suffer(folder / "kept.i64", lambda: packed(pictures, pixels=False), good, num=20) == {"mended": 40}


def test_a_damaged_pack_whose_pictures_are_gone_is_refused(pictures: Path, tmp_path: Path) -> None:
    listing = list_folder(pictures)
    packed(pictures)
    path = next((tmp_path / "home" / "packed").glob("*/*/images.u8"))
    write_new(path, flip(path.read_bytes(), 7, 1)[1])
    shutil.rmtree(pictures)
    with pytest.raises(BadInput, match=r"none of the 4 pictures can be read \(4 'is not there'\)"):
        open_pack(listing, side=8, pixels=True, max_skipped=1.0, num_workers=1, display=Display())


# Encoders.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL)


def state_of(encoder: torch.nn.Module) -> str:
    return fingerprint(*(part for name, value in encoder.state_dict().items() for part in (name, value.numpy())))


READERS: dict[str, Callable[[Path], str]] = {
    "Run.encoder": lambda path: (
        state_of((run := Run(path)).encoder) + fingerprint(run.metadata.model_dump(mode="json"))
    ),
    "load_encoder": lambda path: state_of(load_run_encoder(Run(path)).network),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", [WEIGHTS, METADATA])
def test_a_damaged_encoder_is_refused(run: msvq.Run, tmp_path: Path, name: str, reader: str) -> None:
    copied = shutil.copytree(run.path, tmp_path / "run")
    good = READERS[reader](copied)
    places = PLACES if reader == "Run.encoder" else 20  # the other reads the files in the same way
    outcomes = suffer(copied / name, lambda: READERS[reader](copied), good, num=places)
    # A card may lose the end of its last line, and a space may become another: what it says is the same.
    assert outcomes["refused"] >= 2 * places - (0 if name == WEIGHTS else places // 50)
    assert outcomes["refused"] + outcomes["same"] == 2 * places


def test_the_command_line_says_so_and_its_way_out_is_one(
    run: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(run.path, tmp_path / "run")
    good, last = READERS["Run.encoder"](copied), copied / "checkpoints" / "last.ckpt"
    for name in (WEIGHTS, METADATA):
        content = (copied / name).read_bytes()
        write_new(copied / name, flip(content, len(content) // 2, 1)[1])
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", str(copied)])
        assert ended.value.code == 2
        assert capsys.readouterr().err == (
            f"msvq: {copied / name} is damaged, or not the one that this run wrote; 'msvq pretrain --resume --out "
            f"{copied}' writes it anew, or take --checkpoint {last}\n"
        )
        assert state_of(load_run_encoder(Run(copied), str(last)).network) == READERS["load_encoder"](run.path)
        msvq.pretrain(out=copied, resume=True, console=Console(quiet=True))
        assert READERS["Run.encoder"](copied) == good


def test_an_encoder_without_its_card_is_read_from_the_checkpoint(run: msvq.Run, tmp_path: Path) -> None:
    copied = shutil.copytree(run.path, tmp_path / "run")
    (copied / METADATA).unlink()  # a kill between the two files
    assert READERS["load_encoder"](copied) == READERS["load_encoder"](run.path)


@pytest.mark.parametrize(
    "change",
    [
        {"train_size": None},
        {"size": "large"},
        {"mean": [0.5, 0.5]},
        {"std": [0.5, 0.5, 0]},
        {"std": [0.5, 0.5, float("inf")]},
        {"feature_dim": 17},
        {"backbone": {"name": "resnet8", "width": 3}},
        {"backbone": "resnet18"},
    ],
)
def test_metadata_are_checked_for_what_they_must_say(run: msvq.Run, tmp_path: Path, change: dict[str, object]) -> None:
    copied = shutil.copytree(run.path, tmp_path / "run")
    known = verified(json.loads((copied / METADATA).read_text()), SEAL)
    (copied / METADATA).write_text(json.dumps(known))  # without its seal
    with pytest.raises(BadInput, match=r"encoder\.json is damaged"):
        _ = Run(copied).encoder
    (copied / METADATA).write_text(json.dumps(with_checksum(known, SEAL)))
    assert state_of(Run(copied).encoder) == state_of(run.encoder)
    (copied / METADATA).write_text(json.dumps(with_checksum(known | change, SEAL)))
    with pytest.raises(BadInput, match=r"encoder\.json is damaged|does not fit resnet8 as it is now"):
        _ = Run(copied).encoder


def test_weights_of_another_run_are_not_taken_for_its_own(run: msvq.Run, tmp_path: Path) -> None:
    copied = shutil.copytree(run.path, tmp_path / "run")
    save_file({name: value + 1 for name, value in load_file(run.path / WEIGHTS).items()}, copied / WEIGHTS)
    with pytest.raises(BadInput, match="is damaged, or not the one that this run wrote"):
        load_run_encoder(Run(copied))


# Arrays.


def arrays_in(path: Path) -> str:
    splits = read_arrays(path)
    parts = (splits.train, splits.labelled, splits.test)
    return fingerprint(splits.class_names, *(array for part in parts for array in (part.images, part.labels)))


def save_arrays(path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(path, images=generator.integers(256, size=(24, 8, 8, 3), dtype=np.uint8), labels=np.arange(24) % 3)


def test_a_damaged_npz_is_refused_where_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    save_arrays(path)
    outcomes = suffer(path, lambda: arrays_in(path), arrays_in(path))
    assert outcomes.total() == 2 * PLACES
    assert outcomes["refused"] >= 2 * PLACES - 20  # the rest are dates and the like


def test_every_bit_of_the_table_of_contents_of_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    save_arrays(path)
    content, good = path.read_bytes(), arrays_in(path)
    wrong = []
    for place in range(content.index(b"PK\1\2"), len(content)):
        for bit in range(8):
            words, damaged = flip(content, place, 1 << bit)
            write_new(path, damaged)
            try:
                if arrays_in(path) != good:
                    wrong.append(words)
            except BadInput:
                pass
    assert wrong == []
