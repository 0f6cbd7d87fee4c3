"""The directory of a sweep."""

from pathlib import Path

import pytest

from msvq.core.errors import BadInput
from msvq.reproduce.sweep import MANIFEST, check_out
from msvq.runs.run_dir import LOCK


def test_what_a_kill_at_the_start_leaves_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / f".{MANIFEST}.1234.tmp").write_text('{"scale": "sm')
    check_out(tmp_path, "smoke")
    (tmp_path / "letter.txt").touch()
    with pytest.raises(BadInput, match="holds files that are not a sweep"):
        check_out(tmp_path, "smoke")
