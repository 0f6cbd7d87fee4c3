"""Lists of pictures as people write them: text, CSV and TSV."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from msvq.core.errors import BadInput
from msvq.data.sources.folders import FileImages
from msvq.data.sources.lists import list_file
from msvq.data.workers import perform

Fill = Callable[..., None]
Write = Callable[[str, str], FileImages]


@pytest.fixture
def write(tmp_path: Path, fill: Fill) -> Write:
    """Write a list beside pictures a.png .. f.png and read it."""
    fill(tmp_path, [f"{letter}.png" for letter in "abcdef"])

    def make(name: str, text: str) -> FileImages:
        (tmp_path / name).write_bytes(os.fsencode(text))
        return list_file(tmp_path / name)

    return make


def as_written(listing: FileImages) -> list[tuple[str, str | None, str]]:
    """Name, class and split of each picture, by name."""
    rows = zip(listing.names, listing.labels.tolist(), strict=True)
    return sorted(
        (name, listing.class_names[label] if label >= 0 else None, "train" if i < listing.num_train else "test")
        for i, (name, label) in enumerate(rows)
    )


def classes(listing: FileImages) -> dict[str, str | None]:
    return {name: kind for name, kind, _ in as_written(listing)}


LETTERS = {"a.png": "cat", "b.png": "dog", "c.png": "cat", "d.png": "dog", "e.png": "dog", "f.png": "cat"}


def test_a_file_per_line_is_enough(write: Write, tmp_path: Path) -> None:
    listing = write("list.txt", "c.png\na.png\n\n   \n# a remark\nb.png")
    assert listing.names == ["c.png", "a.png", "b.png"]
    assert (listing.num_train, listing.class_names, listing.notes) == (3, (), ())
    assert listing.root == str(tmp_path)
    assert [os.path.basename(listing[i]) for i in range(3)] == ["c.png", "a.png", "b.png"]  # noqa: PTH119
    assert perform("check", [listing[i] for i in range(3)], 8).reasons == {}


@pytest.mark.parametrize("between", ["\t", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_labels_follow_a_tab_or_a_space(write: Write, between: str, end: str) -> None:
    listing = write("list.txt", end.join(f"{name}{between}{kind}" for name, kind in LETTERS.items()) + end)
    assert classes(listing) == LETTERS
    assert listing.class_names == ("cat", "dog")
    assert listing.notes == ("no labelled test pictures: 2 of the labelled pictures are held out to judge by",)
    assert listing.num_train == 4


def test_names_may_have_spaces(write: Write, tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["my cat 1.png", "my cat 2.png"])
    assert write("list.txt", "my cat 1.png\nmy cat 2.png\n").names == ["my cat 1.png", "my cat 2.png"]
    labelled = write("list.txt", "my cat 1.png house\nmy cat 2.png\tgarden hose\na.png house\nb.png\tgarden hose\n")
    assert classes(labelled) == {
        "my cat 1.png": "house",
        "my cat 2.png": "garden hose",
        "a.png": "house",
        "b.png": "garden hose",
    }


def test_a_csv_may_have_a_header_in_any_order_or_none(write: Write) -> None:
    rows = [f"{name},{kind}" for name, kind in LETTERS.items()]
    with_header = "\n".join(["Class, Weight ,FILE", *(f"{kind},1.5,{name}" for name, kind in LETTERS.items())])
    for text in (
        "\n".join(rows),
        "file,label\n" + "\n".join(rows),
        "\n\nfile,label\n\n" + "\n\n".join(rows),
        with_header,
    ):
        assert classes(write("list.csv", text)) == LETTERS
    assert write("list.csv", "file\na.png\nb.png\n").names == ["a.png", "b.png"]


def test_the_plainest_of_several_titles_counts_whatever_comes_first(write: Write) -> None:
    for header in ("name,path,label", "image,file,class"):
        rows = (f"Photo of {letter},{letter}.png,{'cat' if letter < 'd' else 'dog'}" for letter in "abcdef")
        listing = write("list.csv", "\n".join([header, *rows]))
        assert classes(listing) == {f"{letter}.png": "cat" if letter < "d" else "dog" for letter in "abcdef"}


def test_a_split_column_says_what_is_for_test(write: Write) -> None:
    rows = [f"{name},{kind},{'Test' if name < 'c' else 'train'}" for name, kind in LETTERS.items()]
    for header in ("path,label,split\n", ""):
        listing = write("list.csv", header + "\n".join(rows))
        assert as_written(listing) == [
            (name, kind, "test" if name < "c" else "train") for name, kind in LETTERS.items()
        ]
        assert listing.names[:4] == ["c.png", "d.png", "e.png", "f.png"]
        assert listing.notes == ()
    with pytest.raises(BadInput, match="no pictures to learn from"):
        write("list.csv", "path,label,split\na.png,x,test\nb.png,y,val\n")


def test_a_tsv_a_bom_and_quotes(write: Write, tmp_path: Path, fill: Fill) -> None:
    rows = "\n".join(f"{name}\t{kind}" for name, kind in LETTERS.items())
    assert classes(write("list.tsv", "file\tlabel\n" + rows)) == LETTERS
    assert classes(write("list.csv", "\ufefffile,label\n" + rows.replace("\t", ","))) == LETTERS
    assert write("list.txt", "\ufeffa.png\nb.png\n").names == ["a.png", "b.png"]
    fill(tmp_path, ["one, two.png"])
    assert write("list.CSV", 'file\n"one, two.png"\n').names == ["one, two.png"]


def test_numbers_are_sorted_as_numbers_and_before_words(write: Write) -> None:
    listing = write("list.csv", "a.png,10\nb.png,9\nc.png,100\nd.png,zoo\ne.png,9\nf.png,apple\n")
    assert listing.class_names == ("9", "10", "100", "apple", "zoo")
    assert classes(listing)["c.png"] == "100"


def test_some_may_have_no_label_and_one_label_is_none(write: Write) -> None:
    listing = write("list.csv", "file,label\na.png,x\nb.png,\nc.png,y\nd.png\ne.png,x\n")
    assert classes(listing) == {"a.png": "x", "b.png": None, "c.png": "y", "d.png": None, "e.png": "x"}
    assert listing.names[listing.num_labelled : listing.num_train] == ["b.png", "d.png"]
    alone = write("list.csv", "a.png,x\nb.png,x\n")
    assert (alone.class_names, alone.labels.tolist()) == ((), [-1, -1])


def test_labels_can_be_left_out(write: Write, tmp_path: Path) -> None:
    write("list.csv", "a.png,x\nb.png,y\n")
    listing = list_file(tmp_path / "list.csv", use_labels=False)
    assert (listing.class_names, listing.labels.tolist(), listing.num_train) == ((), [-1, -1], 2)


def test_files_that_are_missing_are_listed_and_have_their_reason_later(write: Write) -> None:
    long, nul = "x" * 300 + ".png", "nu\0l.png"
    listing = write("list.txt", f"a.png\ngone.png\n{long}\nb.png\nsub/none.png\n{nul}\n")
    assert listing.names == ["a.png", "gone.png", long, "b.png", "sub/none.png", nul]
    assert (listing.size_mtime[[1, 2, 4, 5]] == -1).all() and (listing.size_mtime[[0, 3]] > 0).all()
    assert perform("check", [listing[i] for i in range(6)], 8).reasons == {
        1: "is not there",
        2: "cannot be read: File name too long",
        4: "is not there",
        5: "is not there",
    }


def test_an_empty_list_is_said_to_be_empty(write: Write) -> None:
    for name, text in (("list.txt", ""), ("list.txt", "\n \n# x\n"), ("list.csv", ""), ("list.csv", "file,label\n")):
        with pytest.raises(BadInput, match=rf"the list .*{name}' is empty; it needs a file name per line"):
            write(name, text)


def test_a_csv_that_is_none_is_said_to_be_none(write: Write) -> None:
    with pytest.raises(BadInput, match=r"list.csv' is not valid CSV: field larger than field limit"):
        write("list.csv", 'file\n"' + "x" * 200_000)


def test_a_picture_that_is_listed_twice_counts_twice(write: Write) -> None:
    listing = write("list.txt", "a.png\nb.png\na.png\n")
    assert listing.names == ["a.png", "b.png", "a.png"]


def test_absolute_names_and_names_of_any_bytes(write: Write, tmp_path: Path, fill: Fill) -> None:
    strange = os.fsdecode(b"caf\xe9.png")
    fill(tmp_path / "elsewhere", ["far.png"])
    fill(tmp_path, [strange])
    far = str(tmp_path / "elsewhere" / "far.png")
    for name in ("list.txt", "list.csv"):
        listing = write(name, f"{far}\n{strange}\nelsewhere/far.png\n")
        assert listing.names == [far, strange, "elsewhere/far.png"]
        assert (listing[0], listing[1]) == (far, str(tmp_path / strange))
        assert perform("check", [listing[i] for i in range(3)], 8).reasons == {}


def test_the_fingerprint_follows_the_files_and_not_the_labels(write: Write, tmp_path: Path) -> None:
    first = write("list.csv", "a.png,x,train\nb.png,y,train\nc.png,x,test\n").fingerprint()
    assert write("list.csv", "a.png,y,train\nb.png,x,train\nc.png,y,test\n").fingerprint() == first
    assert write("list.csv", "b.png,y,train\na.png,x,train\nc.png,x,test\n").fingerprint() != first
    os.utime(tmp_path / "a.png", ns=(0, 1))
    assert write("list.csv", "a.png,x,train\nb.png,y,train\nc.png,x,test\n").fingerprint() != first
