"""Files that are cut or changed."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tests.damage import changes, suffer, tampered_checkpoints

import msvq
from faults.processes import photographs
from faults.small import Row, differences, train
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.pack import FILES, open_pack
from msvq.data.sources.folders import list_folder
from msvq.report.page import write_report
from msvq.runs.checkpoint import load_checkpoint, read_checkpoint, write_checkpoint
from msvq.runs.encoder import load_run_encoder
from msvq.train.trainer import Trainer


def damage(folder: Path, quick: bool) -> list[Row]:
    """A checkpoint, an encoder, a config and a cache cut and flipped at random places."""
    places = 10 if quick else 200
    run = train(folder / "run", epochs=2)
    cut = [_checkpoint(run, places), *_encoder(run, places), _config(run, places), _cache(folder, places)]
    return [*cut, _tampered(run, places), _tampered_checkpoint(run, quick)]


def _checkpoint(run: msvq.Run, places: int) -> Row:
    checkpoints, said = run.path / "checkpoints", list[str]()
    before = read_checkpoint(checkpoints / "previous.ckpt")
    assert before is not None

    def read() -> str:
        said.clear()
        found = load_checkpoint(checkpoints, said.append)
        assert len(said) == 1 and said[0].startswith("last.ckpt is damaged; the run goes on from previous.ckpt")
        return "another" if list(differences(before, found)) else "the one before"

    outcomes = suffer(checkpoints / "last.ckpt", read, "the one before", num=places)
    both = dict(outcomes) == {"same": 2 * places}
    assert both, outcomes
    return Row("checkpoint cut or flipped", 2 * places, "reported, and the one before it used; never wrong")


def _encoder(run: msvq.Run, places: int) -> list[Row]:
    def read() -> str:
        return str({k: v.sum().item() for k, v in load_run_encoder(msvq.load(run.path)).network.state_dict().items()})

    good = read()
    names = ("encoder.safetensors", "encoder.json")
    return [_told(name, suffer(run.path / name, read, good, num=places), "refused in a sentence") for name in names]


def _config(run: msvq.Run, places: int) -> Row:
    def read() -> str:
        with mock.patch.object(Trainer, "fit", _stand_still):
            train(run.path, resume=True, epochs=None, overrides=[], data=None, precision=None)
        return "went on as the checkpoint says"

    _stand_still.settings = None
    good = read()
    wanted = _stand_still.settings
    outcomes = suffer(run.path / "config.yaml", read, good, num=places)
    assert _stand_still.settings == wanted, "a run went on with other settings"
    return _told("config.yaml", outcomes, "refused, or the checkpoint's settings used")


def _cache(folder: Path, places: int) -> Row:
    """Every file of the packed pictures; they are really decoded and packed again after each damage."""
    with photographs(folder, 4) as root:
        listing = list_folder(root)

        def read() -> str:
            pack = open_pack(listing, side=8, pixels=True, max_skipped=0.5, num_workers=1, display=Display())
            digest = hashlib.sha256(np.ascontiguousarray(pack.images).tobytes())
            return f"{digest.hexdigest()} {list(pack.names)} {pack.kept.tolist()} {pack.skipped} {pack.digest}"

        good = read()
        packs = Path(os.environ["MSVQ_HOME"]) / "packed"
        outcomes = Counter[Any]()
        for name in (*FILES, "pack.json"):
            paths = list(packs.glob(f"*/*/{name}"))
            assert len(paths) == 1, paths
            outcomes += suffer(paths[0], read, good, num=max(1, places // 4), restore=False)
    assert dict(outcomes) == {"mended": sum(outcomes.values())}, outcomes
    return Row("packed pictures cut or flipped", sum(outcomes.values()), "noticed and packed again; never wrong")


def _tampered(run: msvq.Run, places: int) -> Row:
    """Values of another type, broken or left out in the files that the report reads."""
    files = [*sorted((run.path / "eval").glob("*.json")), run.path / "environment.json"]
    outcomes = Counter[str]()
    for path in files:
        content = path.read_bytes()
        tried = list(changes(json.loads(content)))
        for _, changed in tried[:: max(1, len(tried) // places)]:
            path.write_text(json.dumps(changed), encoding="utf-8")
            try:
                write_report(run.path, figures=False)
                outcomes["pages"] += 1
            except BadInput:
                outcomes["refused"] += 1
        path.write_bytes(content)
    write_report(run.path)
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return Row("results tampered with", sum(outcomes.values()), f"{told}; never a traceback")


def _tampered_checkpoint(run: msvq.Run, quick: bool) -> Row:
    """Values of another type, broken or left out in a checkpoint whose checksum is right, and none before it."""
    last = run.path / "checkpoints" / "last.ckpt"
    (last.with_name("previous.ckpt")).unlink()
    state = read_checkpoint(last)
    assert state is not None
    del state["format"]
    outcomes = Counter[str]()
    for words, changed in tampered_checkpoints(state, 97 if quick else 5):
        write_checkpoint(last, changed)
        try:
            with mock.patch.object(Trainer, "fit", _stand_still):
                train(run.path, resume=True, epochs=None, overrides=[], data=None, precision=None)
            sentence, outcome = "", "went on with a count that matters to no weight"
        except BadInput as error:
            sentence, outcome = str(error), "refused"
        assert "\n" not in sentence, f"{words}: {sentence}"
        outcomes[outcome] += 1
    told = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    return Row("checkpoints tampered with", sum(outcomes.values()), f"{told}; never a traceback")


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
