"""msvq search: the nearest pictures, an index that follows the data, and the page."""

import csv
import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from tests.report.browser import Browser, find_chromium
from tests.search.conftest import NUM, Says, save_arrays
from tests.search.test_embedding import counting

import msvq
from msvq.core.array_cache import ArrayCache, map_checked
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import indexes
from msvq.data.patterns import make_patterns
from msvq.runs.encoder import load_run_encoder
from msvq.search import findings, page
from msvq.search import search as searching
from msvq.search.index import Index, _reserved, open_index, unit_rows
from msvq.search.inputs import Inputs
from msvq.search.page import make_thumbnails
from msvq.search.search import nearest, search


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))


def index_of(run: msvq.Run, photos: Path) -> Index:
    return open_index(Inputs(run, str(photos)).open_source(), load_run_encoder(run).to(), Display())


@pytest.mark.parametrize("num", [1, 7, 500])
def test_nearest_is_what_a_full_sort_gives(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "ROWS", 64)
    generator = np.random.default_rng(0)
    features, queries = (unit_rows(generator.normal(size=(n, 16)).astype(np.float32)) for n in (300, 3))
    scores, rows = nearest(features, queries, num)
    cosines = queries @ features.T
    expected = np.argsort(-cosines, axis=1)[:, :num]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, expected, 1), atol=1e-6)


def test_a_picture_of_the_data_finds_itself_first(says: Says, small_run: msvq.Run, photos: Path) -> None:
    query, file = photos / "city" / "20.png", photos.parent / "page.html"
    code, said, _ = says("search", small_run.path, "--data", photos, "--query", query, "--html", file, "--top", 100)
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == f"most like {query}, of {NUM} pictures"
    assert lines[2].split() == ["1", "1.000", "city", "city/20.png"]
    assert sum("png" in line for line in lines[2:]) == NUM  # fewer than --top
    assert "2 left out" in said
    expected = small_run.embed_source(photos, workers=1)
    unit = unit_rows(expected.features)
    order = np.argsort(-(unit @ unit[expected.names.index("city/20.png")]))
    assert [line.split()[-1] for line in lines[2:5]] == [expected.names[i] for i in order[:3]]
    text = file.read_text()
    assert text.partition('id="first"')[2].count("<figure>") == NUM + 1
    assert not re.search(r"(src=\"|href=\"|url\()(?!\"?data:|#|photos/)", text)  # nothing is fetched


def test_a_click_leads_to_the_neighbours_of_a_picture_and_its_name_to_the_file(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "city" / "20.png").rename(photos / "city" / "100% #1?:.png")
    monkeypatch.setattr(searching, "FURTHER", 12)
    inputs, file = Inputs(small_run, str(photos)), photos.parent / "pages" / "found.html"
    file.parent.mkdir()
    found = search(inputs, ["city/100% #1?:.png"], top=3, html=file)
    first_text = file.read_text().partition('id="first"')
    sections = dict(re.findall(r'class="further" id="like-(\d+)">(.*?)</section>', first_text[0], re.DOTALL))
    links = [int(place) for place in re.findall(r'href="#like-(\d+)"', first_text[2])]
    positions = [hit.position for hit in found.answers[0].hits]
    assert set(links) == {*positions} & {*map(int, sections)}
    assert positions[0] in links
    for place, text in sections.items():
        names = [unescape(name) for name in re.findall(r'figcaption title="([^"]*)"', text)]
        index = index_of(small_run, photos)
        own = names.pop(0)
        assert own == index.source.names[int(place)]
        cosines = index.features @ index.features[[index.name(row) for row in range(len(index))].index(own)]
        expected = [index.name(row) for row in np.argsort(-cosines, kind="stable") if index.name(row) != own]
        assert names == expected[:6]
    shown = {*positions, *(int(place) for place in re.findall(r"\.p(\d+) \{", first_text[0]))}
    assert len(shown) <= 3 + 12
    addresses = [unquote(unescape(address)) for address in re.findall(r'<span>\s*<a href="([^"]*)"', first_text[2])]
    assert {(file.parent / address).resolve() for address in addresses} == {
        photos / hit.name for hit in found.answers[0].hits
    }


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt install chromium)")
def test_a_browser_shows_the_neighbours_that_a_click_leads_to(small_run: msvq.Run, photos: Path) -> None:
    file = photos.parent / "found.html"
    found = search(Inputs(small_run, str(photos)), ["city/20.png"], top=3, html=file)
    with Browser(str(find_chromium())) as browser:
        browser.open(file, width=420, dark=True)
        browser.evaluate("document.querySelectorAll('#first .hits figure > a')[1].click()")
        browser.wait_for("document.querySelector('.further:target')")
        there = "document.querySelector('.further:target')"
        assert (
            browser.evaluate(f"{there}.querySelector('h2').textContent") == f"Most like {found.answers[0].hits[1].name}"
        )
        assert browser.evaluate("document.querySelector('#first').offsetHeight") == 0
        shown = f"[...{there}.querySelectorAll('.again')].map(e => getComputedStyle(e).backgroundImage.slice(0, 15))"
        assert browser.evaluate(shown) == ['url("data:image'] * 7
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.evaluate("history.back()")
        browser.wait_for("document.querySelector('#first').offsetHeight")
        assert browser.errors == []
        assert all(address.startswith(("file:", "data:")) for address in browser.requests)


def test_several_files_stand_behind_one_query(says: Says, small_run: msvq.Run, photos: Path) -> None:
    files = sorted((photos / "city").glob("*.png"))[:3]  # as a shell spells out *.png
    code, said, _ = says("search", small_run.path, "--data", photos, "--json", "--top", 1, "--query", *files)
    assert code == 0
    assert [answer["query"] for answer in json.loads(said)["answers"]] == list(map(str, files))


def test_several_queries_by_name_and_as_json(says: Says, small_run: msvq.Run, tmp_path: Path) -> None:
    save_arrays(tmp_path / "pictures.npz")
    words = ["search", small_run.path, "--data", tmp_path / "pictures.npz", "--query", "train 3", "--query", "train 4"]
    code, said, _ = says(*words, "--json", "--top", 2)
    assert code == 0
    answers = json.loads(said)["answers"]
    assert [answer["found"][0]["name"] for answer in answers] == ["train 3", "train 4"]
    assert all(len(answer["found"]) == 2 for answer in answers)


def test_any_number_of_queries_is_looked_up_some_at_a_time(
    small_run: msvq.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(photos.rglob("*.png"))[:9]
    inputs = Inputs(small_run, str(photos))
    asked: list[str | Path] = [*files, "city/20.png", files[0]]
    expected = searching.search(inputs, asked, top=4)
    for name, value in {"QUERIES": 2, "FILES": 2}.items():
        monkeypatch.setattr(searching, name, value)
    monkeypatch.setattr(findings, "PAGE_GROUPS", 5)
    page, out = tmp_path / "found.html", tmp_path / "found.csv"
    found = searching.search(inputs, asked, top=4, out=out, html=page)
    for one, other in zip(found.answers, expected.answers, strict=True):
        assert [hit.name for hit in one.hits] == [hit.name for hit in other.hits]
    assert [answer.hits[0].name for answer in found.answers[:9]] == [f"{p.parent.name}/{p.name}" for p in files]
    assert "The first 5 groups are shown." in page.read_text()
    rows = list(csv.DictReader(out.open()))
    assert [row["file"] for row in rows] == [hit.name for answer in found.answers for hit in answer.hits]
    assert [row["rank"] for row in rows[:5]] == ["1", "2", "3", "4", "1"]
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(BadInput, match=r"text\.png' .*; name a picture that can be read"):
        searching.search(inputs, [*files, tmp_path / "text.png"])


def test_only_what_changed_is_embedded_again(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_of(small_run, photos)
    seen = counting(monkeypatch)
    index_of(small_run, photos)
    assert not seen
    images, _ = make_patterns(3, seed=8)
    Image.fromarray(images[0]).save(photos / "beach" / "new.png")
    Image.fromarray(images[1]).save(photos / "city" / "20.png")
    (photos / "city" / "21.png").unlink()
    (photos / "beach" / "99.jpg").unlink()
    made = index_of(small_run, photos)
    assert sum(seen) == 2  # the new and the changed one; what could not be read is not tried again
    assert len(made) == NUM
    assert list(made.skipped.values()) == ["is not a picture"]
    expected = small_run.embed_source(photos, workers=1)
    np.testing.assert_allclose(made.features, unit_rows(expected.features), atol=1e-6)
    shutil.rmtree(indexes())
    np.testing.assert_array_equal(index_of(small_run, photos).features, made.features)  # to the bit


def test_another_encoder_has_another_index(small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_of(small_run, photos)
    seen = counting(monkeypatch)
    search(Inputs(small_run, str(photos), precision="bf16"), [photos / "city" / "20.png"])
    assert sum(seen) == NUM + 2 + 1


def test_a_damaged_index_is_made_again(
    small_run: msvq.Run, photos: Path, capsys: pytest.CaptureFixture[str], says: Says
) -> None:
    before = np.array(index_of(small_run, photos).features)
    (file,) = indexes().glob("*/*/features.f32")
    content = bytearray(file.read_bytes())
    content[77] ^= 255
    file.write_bytes(content)
    _, _, error = says("search", small_run.path, "--data", photos, "--query", "beach/03.png")
    assert "is damaged (features.f32): making it again" in error
    np.testing.assert_array_equal(index_of(small_run, photos).features, before)


def test_a_page_escapes_hostile_names(small_run: msvq.Run, photos: Path) -> None:
    hostile = "<script>alert(1)<\\script>&\"'.png"
    shutil.copy(photos / "city" / "20.png", photos / "city" / hostile)
    file = photos.parent / "page.html"
    search(Inputs(small_run, str(photos)), [photos / "city" / hostile], html=file)
    text = file.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_thumbnails_are_those_of_their_names(small_run: msvq.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Inputs(small_run, "patterns").open_source()
    num_train = source.names.index("test 0")
    mixed = [num_train + 3, 5, num_train, 2, num_train + 1, 9]  # as a search ranks them
    expected = np.concatenate([next(source.decoded([np.array([place])], 32)).rows for place in mixed])
    (result,) = source.decoded([np.array(mixed)], 32)
    np.testing.assert_array_equal(result.rows, expected)
    monkeypatch.setattr(page, "data_address", lambda pixels, quality: pixels.tobytes().hex())
    made = make_thumbnails(source, mixed)
    assert [made[place].address for place in mixed] == [pixels.tobytes().hex() for pixels in expected]


def test_every_command_takes_the_features_that_another_has_computed(
    says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = msvq.load_encoder("pixels")
    commands: dict[str, list[str | int | Path]] = {
        "embed": ["--out", tmp_path / "e.npz"],
        "search": ["--query", "beach/03.png"],
        "duplicates": [],
        "outliers": ["--num", 5],
        "select": ["--num", 3],
        "cluster": ["--num", 2],
        "mislabelled": [],
    }
    for first in ("embed", "search"):
        shutil.rmtree(indexes(), ignore_errors=True)
        assert says(first, "pixels", "--data", photos, *commands[first])[0] == 0
        with monkeypatch.context() as patch:
            seen = counting(patch)
            for command, words in commands.items():
                assert says(command, "pixels", "--data", photos, *words)[0] == 0, command
            pixels.embed_source(photos)
            assert not seen
    with np.load(tmp_path / "e.npz") as saved:  # with the bits that the encoder gives
        files = [photos / name for name in saved["names"]]
        np.testing.assert_array_equal(saved["features"], pixels.embed(files))


def test_a_cache_where_nothing_can_be_written_is_one_sentence(
    says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file, where the cache would be")
    for command, *words in (("embed", "--out", tmp_path / "e.csv"), ("search", "--query", "beach/03.png")):
        code, said, error = says(command, small_run.path, "--data", photos, *words)
        assert code == 0
        assert f"{NUM} pictures" in said
        assert error.count("features are not kept for the next command, since nothing can be written to") == 1
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "full"))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("msvq.search.feature_shards.write_atomically", full)
    code, said, error = says("embed", small_run.path, "--data", photos, "--out", tmp_path / "f.csv")
    assert (code, said) == (2, "") and not (tmp_path / "f.csv").exists()
    assert error.count("\n") == 1 and "or point MSVQ_HOME at another disk" in error


def test_an_index_is_read_where_nothing_can_be_written(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = np.array(index_of(small_run, photos).features)

    def closed(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("msvq.core.array_cache.lock", closed)
    seen = counting(monkeypatch)
    np.testing.assert_array_equal(index_of(small_run, photos).features, before)
    assert not seen


def test_a_full_disk_is_told_before_the_index_is_written(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = photos.parent / "reserved"
    assert _reserved(file, 100_000, 100).shape == (250, 100)
    assert file.stat().st_blocks * 512 >= 100_000  # no holes, which a map would fill when the disk is full
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=100))
    with pytest.raises(msvq.BadInput, match=r"has 0\.0 GB left and the index needs .* MSVQ_HOME"):
        index_of(small_run, photos)
    assert not list(indexes().glob("*/*/features.f32"))


def test_a_damaged_index_stays_until_the_lock_is_held(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_of(small_run, photos)
    (file,) = indexes().glob("*/*/features.f32")
    whole = file.read_bytes()
    file.write_bytes(b"x" + whole[1:])

    @contextmanager
    def repaired(*arguments: object, **options: object) -> Iterator[None]:
        assert file.exists()
        file.write_bytes(whole)  # another process has made it, which was waited for
        yield

    monkeypatch.setattr("msvq.core.array_cache.lock", repaired)
    seen = counting(monkeypatch)
    assert len(index_of(small_run, photos)) == NUM
    assert not seen


def test_an_index_that_cannot_be_read_back_is_one_sentence(
    small_run: msvq.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = map_checked

    def broken(folder: Path, *arguments: Any) -> Any:
        (folder / "names.u8").unlink()
        return real(folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr("msvq.core.array_cache.map_checked", broken)
        with pytest.raises(msvq.BadInput, match=r"cannot be read back \(No such file"):
            index_of(small_run, photos)
        patch.setattr(ArrayCache, "read_manifest", lambda cache: None)
        with pytest.raises(msvq.BadInput, match="was deleted"):
            index_of(small_run, photos)
    assert len(index_of(small_run, photos)) == NUM


def test_names_are_printed_as_they_are(says: Says, small_run: msvq.Run, photos: Path) -> None:
    shutil.copy(photos / "city" / "20.png", photos / "city" / ":cat:.png")
    _, said, _ = says("search", small_run.path, "--data", photos, "--query", photos / "city" / ":cat:.png")
    assert said.count(":cat:.png") == 2
    _, _, error = says("search", small_run.path, "--data", photos, "--query", ":dog:.png")
    assert ":dog:.png" in error


def test_mistakes_get_one_sentence(says: Says, small_run: msvq.Run, photos: Path, tmp_path: Path) -> None:
    good = ["--data", photos, "--query", photos / "city" / "20.png"]
    bad_pages = {"--html": tmp_path / "page.txt"}, {"--html": tmp_path / "none" / "page.html"}
    cases = [
        (["--data", photos, "--query", photos / "city" / "letter.jpg"], "letter.jpg' is not a picture; name a picture"),
        (["--data", photos, "--query", "nothing.jpg"], "is no file, nor the name of a picture there"),
        (["--data", photos, "--query", photos], "is a folder, which --data takes; name a picture"),
        (["--data", photos, "--query", "city/letter.jpg"], "'city/letter.jpg' is not a picture"),
        ([*good, "--top", "0"], "--top"),
        *(([*good, *(word for pair in bad.items() for word in pair)], "--html") for bad in bad_pages),
    ]
    for words, expected in cases:
        code, said, error = says("search", small_run.path, *words)
        assert code == 2, words
        assert expected in error, error
        assert not said
