"""A run directory that is started anew."""

from pathlib import Path

from msvq.config.settings import Settings
from msvq.runs.run_dir import start_directory


def test_a_linked_folder_is_emptied_and_the_link_stays(tmp_path: Path) -> None:
    out, disk, others = tmp_path / "run", tmp_path / "disk", tmp_path / "others"
    for folder in (out, disk / "deep", others):
        folder.mkdir(parents=True)
    for file in (disk / "last.ckpt", disk / "deep" / "file", others / "precious"):
        file.touch()
    (disk / "link").symlink_to(others)
    (out / "checkpoints").symlink_to(disk)
    (out / "eval").mkdir()
    (out / "eval" / "knn.json").touch()
    (out / "notes.txt").touch()
    start_directory(out, Settings(), {})
    assert (out / "checkpoints").readlink() == disk
    assert list(disk.iterdir()) == []
    assert (others / "precious").is_file()
    assert {path.name for path in out.iterdir()} == {"checkpoints", "config.yaml", "environment.json", "notes.txt"}
