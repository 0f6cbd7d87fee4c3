"""The directory of a sweep."""

from pathlib import Path

import pytest

from msvq.core.errors import BadInput
from msvq.core.files import LOCK
from msvq.reproduce.cells import Cell
from msvq.reproduce.sweep import MANIFEST, check_place, make_tasks, opened


def test_what_a_kill_at_the_start_leaves_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / f".{MANIFEST}.1234.tmp").write_text('{"scale": "sm')
    check_place(tmp_path, "smoke")
    (tmp_path / "letter.txt").touch()
    with pytest.raises(BadInput, match="holds files that are not a sweep"):
        check_place(tmp_path, "smoke")


@pytest.mark.parametrize(
    "name", [LOCK, "cells", "results", "results/cells", "logs", "logs/errors.log", "logs/patterns-msvq-s0.log"]
)
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    out, others = tmp_path / "sweep", tmp_path / "others"
    others.mkdir()
    (others / "precious").write_text("mine")
    place = out / name
    place.parent.mkdir(parents=True)
    (out / MANIFEST).write_text('{"scale": "smoke", "cells": {}}')
    place.symlink_to(others if name in ("cells", "results", "results/cells", "logs") else others / "precious")
    tasks = make_tasks(out, [(Cell("smoke", "patterns", "msvq", (), 0), ())])
    with pytest.raises(BadInput, match="is a link to"), opened(out, "smoke", tasks):
        pass
    assert [path.read_text() for path in others.iterdir()] == ["mine"]
