"""Folders of pictures, in every arrangement that people keep them in."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from msvq.core.errors import BadInput
from msvq.core.files import SECTIONS
from msvq.data.sources.folders import FileImages, list_folder, walk

Fill = Callable[..., None]


def numbered(folder: str, num: int, ending: str = "png") -> list[str]:
    return [f"{folder}{i:02}.{ending}" for i in range(num)]


def train(listing: FileImages) -> list[str]:
    return listing.names[: listing.num_train]


def judged(listing: FileImages) -> list[str]:
    return listing.names[listing.num_train :]


def classes(listing: FileImages, names: Sequence[str]) -> dict[str, str | None]:
    """The class of each picture."""
    label = dict(zip(listing.names, listing.labels.tolist(), strict=True))
    return {name: listing.class_names[label[name]] if label[name] >= 0 else None for name in names}


def has_no_labels(listing: FileImages) -> bool:
    return listing.class_names == () and (listing.labels == -1).all() and listing.num_train == len(listing)


def test_a_flat_folder_has_no_labels(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["b.png", "a.jpg", "c.webp", "10.gif", "9.bmp"])
    listing = list_folder(tmp_path)
    assert listing.names == ["10.gif", "9.bmp", "a.jpg", "b.png", "c.webp"]
    assert has_no_labels(listing)
    assert listing[2] == str(tmp_path / "a.jpg")
    assert listing.size_mtime[2].tolist() == [
        (tmp_path / "a.jpg").stat().st_size,
        (tmp_path / "a.jpg").stat().st_mtime_ns,
    ]
    assert listing.notes == ()


def test_a_folder_per_class_gives_labels_and_a_held_out_tenth(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("dog/", 20), *numbered("cat/", 30), *numbered("Ant/", 3)])
    listing = list_folder(tmp_path)
    assert listing.class_names == ("Ant", "cat", "dog")
    assert classes(listing, listing.names) == {name: name.split("/")[0] for name in listing.names}
    assert Counter(name.split("/")[0] for name in judged(listing)) == {"dog": 2, "cat": 3, "Ant": 1}
    assert not set(train(listing)) & set(judged(listing))
    assert sorted(listing.names) == sorted(walk(tmp_path).names)
    assert listing.num_labelled == listing.num_train == 47
    assert listing.notes == (
        "no labelled test pictures: 6 of the labelled pictures are held out to judge by",
        "3 classes, by folder; --set data.labels=none leaves them out",
    )


def test_the_held_out_pictures_are_the_same_every_time_and_not_the_first(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("a/", 40), *numbered("b/", 40)])
    first = judged(list_folder(tmp_path))
    assert judged(list_folder(tmp_path)) == first
    assert first != [*numbered("a/", 4), *numbered("b/", 4)]
    fill(tmp_path, numbered("z/", 4))  # another class does not change theirs
    assert judged(list_folder(tmp_path))[:8] == first


def test_labels_can_be_left_out(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("a/", 4), *numbered("b/", 4)])
    listing = list_folder(tmp_path, use_labels=False)
    assert has_no_labels(listing)
    assert listing.names == [*numbered("a/", 4), *numbered("b/", 4)]
    assert listing.notes == ()


def test_a_few_loose_pictures_beside_classes_have_no_label(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("a/", 10), *numbered("b/", 10), "loose.png", "other.png"])
    listing = list_folder(tmp_path)
    assert classes(listing, ["loose.png", "other.png", "a/01.png"]) == {
        "loose.png": None,
        "other.png": None,
        "a/01.png": "a",
    }
    assert train(listing)[-2:] == ["loose.png", "other.png"]  # after those with a label
    assert (listing.num_train, listing.num_labelled) == (20, 18)
    fill(tmp_path, numbered("more", 20))
    assert has_no_labels(list_folder(tmp_path))


def test_train_and_test_are_taken_as_they_are(tmp_path: Path, fill: Fill) -> None:
    for first, second in (("train", "test"), ("Training", "Testing"), ("train", "val"), ("train", "validation")):
        root = tmp_path / f"{first}-{second}"
        fill(root, [*numbered(f"{first}/a/", 4), *numbered(f"{first}/b/", 3), *numbered(f"{second}/a/", 2, "jpg")])
        listing = list_folder(root)
        assert train(listing) == [*numbered(f"{first}/a/", 4), *numbered(f"{first}/b/", 3)]
        assert judged(listing) == numbered(f"{second}/a/", 2, "jpg")
        assert listing.class_names == ("a", "b")
        assert listing.labels.tolist() == [0] * 4 + [1] * 3 + [0] * 2
        assert listing.notes == ("2 classes, by folder; --set data.labels=none leaves them out",)


def test_val_is_left_out_where_there_is_a_test_split(tmp_path: Path, fill: Fill) -> None:
    for part in ("train", "val", "test"):
        fill(tmp_path, [*numbered(f"{part}/a/", 3), *numbered(f"{part}/b/", 3)])
    fill(tmp_path, ["cover.png"])
    listing = list_folder(tmp_path)
    assert {name.split("/")[0] for name in train(listing)} == {"train"}
    assert {name.split("/")[0] for name in judged(listing)} == {"test"}
    assert listing.notes[0] == "7 pictures beside train/ and test/ are left out"


def test_what_is_unlabeled_is_learned_from_without_a_class(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("train/a/", 3), *numbered("train/b/", 3), *numbered("test/b/", 2)])
    fill(tmp_path, [*numbered("unlabeled/", 4), *numbered("unlabeled/a/", 2)])
    listing = list_folder(tmp_path)
    assert train(listing) == [
        *numbered("train/a/", 3),
        *numbered("train/b/", 3),
        *numbered("unlabeled/", 4),
        *numbered("unlabeled/a/", 2),
    ]
    assert listing.labels.tolist() == [0, 0, 0, 1, 1, 1, *[-1] * 6, 1, 1]
    assert (listing.num_train, listing.num_labelled) == (12, 6)


def test_train_without_classes_leaves_the_test_split_out(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("train/", 5), *numbered("test/", 3)])
    listing = list_folder(tmp_path)
    assert has_no_labels(listing)
    assert listing.names == numbered("train/", 5)
    assert listing.notes == ("3 test pictures without a known class are left out",)


def test_a_test_split_without_classes_is_replaced_by_a_held_out_tenth(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("train/a/", 10), *numbered("train/b/", 10), *numbered("test/", 3)])
    listing = list_folder(tmp_path)
    assert (listing.num_train, len(listing)) == (18, 20)
    assert all(name.startswith("train/") for name in listing.names)
    assert listing.notes[:2] == (
        "the 3 test pictures have no labels: they are left out",
        "no labelled test pictures: 2 of the labelled pictures are held out to judge by",
    )


def test_a_class_of_test_that_train_lacks_is_left_out(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("train/a/", 3), *numbered("train/b/", 3), *numbered("test/a/", 2)])
    fill(tmp_path, numbered("test/new/", 4))
    listing = list_folder(tmp_path)
    assert listing.class_names == ("a", "b")
    assert judged(listing) == numbered("test/a/", 2)
    assert listing.notes[0] == "4 test pictures without a known class are left out"


def test_a_folder_called_the_same_in_every_class_is_no_level(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("a/images/", 4), *numbered("b/images/", 4)])
    listing = list_folder(tmp_path)
    assert listing.class_names == ("a", "b")
    assert classes(listing, ["a/images/00.png", "b/images/03.png"]) == {"a/images/00.png": "a", "b/images/03.png": "b"}


def test_folders_that_name_no_classes_give_no_labels(tmp_path: Path, fill: Fill) -> None:
    by_date = [f"{year}/{month:02}/{i}.png" for year in (2023, 2024) for month in (1, 2) for i in range(5)]
    one_each = [f"shot{i}/picture.png" for i in range(10)]
    single = numbered("only/", 10)
    for number, names in enumerate((by_date, one_each, single)):
        fill(tmp_path / str(number), names)
        listing = list_folder(tmp_path / str(number))
        assert has_no_labels(listing)
        assert listing.names == sorted(names)


def test_the_pictures_of_a_run_are_not_data(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["a.png", "b/c.png", "runs/x/figures/map.png", "runs/y/figures/map.png"])
    settings = "".join(f"{name}: {{}}\n" for name in SECTIONS)
    (tmp_path / "runs" / "x" / "config.yaml").write_text(settings)
    (tmp_path / "only" / "z").mkdir(parents=True)
    (tmp_path / "only" / "z" / "config.yaml").write_text(settings)
    (tmp_path / "runs" / "y" / "config.yaml").write_text("title: of another program\n")
    listing = list_folder(tmp_path)
    assert listing.names == ["a.png", "b/c.png", "runs/y/figures/map.png"]
    assert "directories of runs are left out: 2" in listing.notes
    with pytest.raises(BadInput, match=r"there are no pictures in .* beside directories of runs, which are no data"):
        list_folder(tmp_path / "only")
    assert walk(tmp_path / "runs" / "x").names == ["figures/map.png"]  # who asks for them gets them


def test_hidden_files_and_those_of_a_mac_are_not_there(tmp_path: Path, fill: Fill) -> None:
    fill(
        tmp_path, ["a.png", ".b.png", "._a.png", ".git/c.png", "__MACOSX/a.png", "deep/__MACOSX/._a.png", "deep/d.png"]
    )
    listing = list_folder(tmp_path)
    assert listing.names == ["a.png", "deep/d.png"]
    assert listing.num_others == 0


def test_extensions_may_be_upper_case_and_other_files_are_counted(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["A.JPG", "b.Png", "notes.txt", "sub/labels.csv", "sub/clip.mp4", "noextension"])
    listing = list_folder(tmp_path)
    assert listing.names == ["A.JPG", "b.Png"]
    assert listing.num_others == 4


def test_nothing_to_learn_from_is_said_in_a_sentence(tmp_path: Path, fill: Fill) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput) as raised:
        list_folder(tmp_path / "empty")
    assert str(raised.value) == (f"there are no pictures in '{tmp_path}/empty'; name a folder of .jpg, .png ... files")
    fill(tmp_path / "texts", ["a.txt", "b/c.HEIC", "b/d.heic"])
    with pytest.raises(BadInput, match=r"it holds 3 files of other kinds \(\.heic, \.txt\); name a folder of"):
        list_folder(tmp_path / "texts")


def test_pipes_are_no_pictures_and_folders_called_jpg_are_folders(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["x.jpg/inside.png"])
    os.mkfifo(tmp_path / "pipe.jpg")
    listing = list_folder(tmp_path)
    assert listing.names == ["x.jpg/inside.png"]
    assert listing.num_others == 1


def test_links_are_followed_but_not_in_circles(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "elsewhere", ["there.png"])
    root = tmp_path / "root"
    fill(root, ["sub/a.png"])
    (root / "link.png").symlink_to(root / "sub" / "a.png")
    (root / "far").symlink_to(tmp_path / "elsewhere")
    (root / "sub" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "broken.png").symlink_to(root / "nothing.png")
    (root / "broken").symlink_to(root / "nothing")
    found = walk(root)
    assert found.names == ["broken.png", "far/there.png", "link.png", "loop.png", "sub/a.png"]
    assert [stamp == (-1, -1) for stamp in found.size_mtime] == [True, False, False, True, False]
    assert found.others.total() == 2


def test_a_folder_that_cannot_be_looked_into_is_reported(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, ["a.png", "shut/b.png"])
    real = os.scandir

    def refuse(folder: str) -> "os._ScandirIterator[str]":
        if folder.endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    listing = list_folder(tmp_path)
    assert listing.names == ["a.png"]
    assert listing.unlisted == (("shut", "cannot be looked into: Permission denied"),)


def test_names_of_any_bytes_are_kept(tmp_path: Path, fill: Fill) -> None:
    strange = os.fsdecode(b"caf\xe9\n.png")
    fill(tmp_path, ["sp ace/ü.png", strange])
    listing = list_folder(tmp_path)
    assert listing.names == [strange, "sp ace/ü.png"] or listing.names == ["sp ace/ü.png", strange]
    assert len(listing.fingerprint()) == 32


def test_a_limit_takes_pictures_of_every_class_and_leaves_the_test_split(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, [*numbered("train/a/", 30), *numbered("train/b/", 30), *numbered("train/c/", 30)])
    fill(tmp_path, [*numbered("test/a/", 5), *numbered("unlabeled/", 10)])
    whole = list_folder(tmp_path)
    part = whole.limit(40)
    assert (part.num_train, len(part)) == (40, 45)
    assert judged(part) == judged(whole)
    assert [name for name in whole.names if name in set(part.names)] == part.names  # in the same order
    assert set(classes(part, train(part)).values()) == {"a", "b", "c", None}
    where = [whole.names.index(name) for name in part.names]
    assert np.array_equal(part.labels, whole.labels[where])
    assert np.array_equal(part.size_mtime, whole.size_mtime[where])
    assert part.num_labelled == sum(label is not None for label in classes(part, train(part)).values())
    assert whole.limit(40).names == part.names
    assert whole.limit(1000) is whole and whole.limit(None) is whole


def test_the_fingerprint_follows_the_files(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["a.png", "b.png", "notes.txt"])
    seen = [list_folder(tmp_path).fingerprint()]

    def changed() -> bool:
        seen.append(list_folder(tmp_path).fingerprint())
        return seen[-1] not in seen[:-1]

    assert not changed()
    (tmp_path / "notes.txt").write_text("other files do not matter")
    assert not changed()
    fill(tmp_path, ["c.png"])
    assert changed()
    (tmp_path / "c.png").rename(tmp_path / "d.png")
    assert changed()
    os.utime(tmp_path / "d.png", ns=(0, 12345))
    assert changed()
    with (tmp_path / "d.png").open("ab") as file:
        file.write(b"x")
    os.utime(tmp_path / "d.png", ns=(0, 12345))
    assert changed()
    (tmp_path / "d.png").unlink()
    assert not changed()  # as it was at first
    assert seen[-1] == seen[0]
    (tmp_path / "b.png").unlink()
    assert changed()


def test_a_class_called_train_is_no_split(tmp_path: Path, fill: Fill) -> None:
    for kind in ("bus", "car", "train"):
        fill(tmp_path / kind, ["0.png", "1.png", "2.png"])
    listing = list_folder(tmp_path)
    assert listing.class_names == ("bus", "car", "train")
    assert len(listing) == 9
    fill(tmp_path / "test" / "bus", ["0.png"])  # but with a test folder beside it, it is one
    assert {name.split("/")[0] for name in list_folder(tmp_path).names} == {"train"}
