"""The report: self-contained, escaped, and it says what the files say."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image
from tests.report.fixtures import HOSTILE, change_analysis, change_log, make_run, write_json

from msvq.core.errors import BadInput
from msvq.report.curves import smooth
from msvq.report.figures import draw_maps
from msvq.report.numbers import comparison, confused_pairs, confusion, tell_knn
from msvq.report.page import SCRIPTS, summary, write_report
from msvq.report.pictures import sprite_sheet
from msvq.report.records import ARRAYS, read_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / HOSTILE.replace("/", ""))


def page_of(*runs: Path) -> str:
    return write_report(runs, runs[0].parent / "page.html", figures=False).read_text()


def big_numbers(page: str) -> list[tuple[str, str]]:
    shown = re.findall(r"<div><b>(.*?)</b><span>([^<]*)</span></div>", page)
    return [(re.sub("<[^>]*>", "", value), name) for value, name in shown]


def test_page_is_self_contained_and_escaped(run: Path) -> None:
    page = page_of(run, make_run(run.parent / "other"))
    assert page.count("<script") == len(SCRIPTS) + 1  # its own, and the map's values
    assert page.count("</script") == len(SCRIPTS) + 1
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert not re.search(r"https?://", page)
    assert "@import" not in page
    assert "url(" not in page


def test_the_policy_allows_its_own_scripts_only(run: Path) -> None:
    match = re.search(r'Content-Security-Policy" content="([^"]*)"', page_of(run))
    assert match is not None
    assert "default-src 'none'; img-src data:;" in match[1]
    script = match[1].split("script-src")[1]
    assert script.count("sha256-") == len(SCRIPTS)
    assert "unsafe" not in script


def test_page_shows_curves_and_neighbours(run: Path) -> None:
    page = page_of(run)
    assert "kNN accuracy over epoch: from 30.0 % to 33.0 %" in page
    assert "Loss over epoch: from 5 to 4.1" in page
    for title in ("Learning rate", "Rank of the features", "Spread of the features"):
        assert f"<h3>{title}</h3>" in page
    grid = page[page.index("Nearest neighbours of test pictures") :]
    grid = grid[: grid.index("</section>")]
    assert grid.count("<figure") == 2 * (1 + 3 + 3)
    assert grid.count('<figure class="same"') == grid.count("✓") - 1 == 6  # one in the sentence above
    assert grid.count('<figure class="other"') == grid.count("✗") - 1 == 6


def test_verdict_has_a_sign_a_word_and_advice(run: Path) -> None:
    page = page_of(run)
    assert (
        '<p class="state collapsing"><span class="sign" aria-hidden="true"><span>!</span></span><b>Collapsing</b>'
        in page
    )
    assert "The rank falls, says &lt;script&gt;" in page
    assert "<li>Lower base_lr.</li>" in page


def test_one_accuracy_is_told_alike_wherever_it_stands(run: Path) -> None:
    change_log(run, lambda line: {**line, "knn_top1": 15.549999475479126} if "knn_top1" in line else line)
    knn = json.loads((run / "eval" / "knn.json").read_text())
    write_json(run / "eval" / "knn.json", knn | {"top1": 15.55})
    change_analysis(run, "trained", 15.55)
    page = page_of(run)
    assert big_numbers(page)[-1] == ("15.6 ± 1.6 %", "after training") and "<td>15.6 %</td>" in page
    assert "kNN accuracy over epoch: from 15.6 % to 15.6 %" in page and "; the last evaluation" not in page


def test_where_the_curve_ends_elsewhere_than_the_last_evaluation_the_page_says_why(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["train"]["precision"], config["evaluate"] = "bf16", {"knn_bank": 5000}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    knn = json.loads((run / "eval" / "knn.json").read_text())
    write_json(run / "eval" / "knn.json", knn | {"top1": 35.0, "precision": "fp32", "num_labels": 50_000})
    change_analysis(run, "trained", 35.0)
    page = page_of(run)
    assert big_numbers(page)[-1] == ("35.0 ± 2.1 %", "after training") and "<td>35.0 %</td>" in page
    why = "Measured in bf16 and by 5,000 labelled pictures; the last evaluation, which was not, says 35.0 %."
    assert f"Higher is better. {why}" in page
    assert tell_knn(read_record(run)) == "kNN 35.0 ± 2.1 % (30.0 % untrained, 20.0 % by chance)"


def test_big_numbers_are_held_against_what_one_has_without_an_encoder(run: Path) -> None:
    page = page_of(run)
    assert big_numbers(page) == [
        ("20.0 %", "chance"),
        ("25.5 ± 1.9 %", "colour histogram"),
        ("21.5 ± 1.8 %", "8 x 8 pixels"),
        ("30.0 ± 2.0 %", "untrained encoder"),
        ("33.0 ± 2.1 %", "after training"),
    ]
    assert "500 test pictures; ± one standard error of so many. Chance: always the commonest class." in page


def test_without_labels_the_big_numbers_are_copies_that_find_their_originals(run: Path) -> None:
    change_log(run, lambda line: {key: value for key, value in line.items() if key != "knn_top1"})
    write_json(
        run / "eval" / "analysis.json", {**json.loads((run / "eval" / "analysis.json").read_text()), "knn": None}
    )
    page = page_of(run)
    assert "How often do changed copies of pictures find their originals?" in page
    values = [value for value, _ in big_numbers(page)]
    assert values == ["18.2 ± 0.9 %", "17.2 ± 0.8 %", "19.2 ± 0.9 %", "20.2 ± 0.9 %"]  # to even
    assert "There are no labels, so no accuracy: the run tested itself." in page


def test_copies_and_signs_of_a_collapse_stand_below(run: Path) -> None:
    more = {"embedding_rank": 7.5, "uniformity": -2.25, "alignment": 0.125}
    change_log(run, lambda line: {**line, **more} if line["kind"] == "eval" else line)
    page = page_of(run)
    row = '<tr><th scope="row">after training</th><td>20.2 ± 0.9 %</td><td>50.0 ± 1.2 %</td></tr>'
    assert row in page and page.count("± 0.9 %") == 4
    assert "Copies of 2,000 pictures" in page and "never trained on 200 of these pictures" in page
    assert '<th scope="row">rank</th><td>3.00</td><td>6.00</td><td>7.50</td><td>7.50</td>' in page
    assert '<th scope="row">uniformity</th><td>-2.25</td><td>-2.25</td><td>–</td><td>–</td>' in page


@pytest.mark.parametrize(
    ("state", "sign", "word"),
    [
        ("good", "✓", "Good"),
        ("better", "~", "Better than untrained"),
        ("weak", "!", "Weak"),
        ("too-short", "…", "Too short"),
        ("collapsed", "✕", "Collapsed"),
        ("unknown", "?", "Not known"),
    ],
)
def test_every_state_has_a_sign_and_a_word_and_only_good_is_green(run: Path, state: str, sign: str, word: str) -> None:
    write_json(run / "eval" / "analysis.json", {"verdict": {"state": state, "sentence": "So it is."}})
    page = page_of(run)
    assert f'<p class="state {state}"><span class="sign" aria-hidden="true"><span>{sign}</span></span><b>{word}' in page
    assert re.findall(r"\.state([^{]*) \{ color: var\(--good\)", page) == [".good"]


def test_results_in_a_table(run: Path) -> None:
    page = page_of(run)
    assert "<td>61.5 %</td>" in page
    assert "<td>70.0 ± 0.2 %</td>" in page  # 0.25, to even
    assert "best epoch 70.5 %, 2 seeds" in page
    assert "from scratch 60.0 %, 10 % of the labels" in page


def test_other_encoders_stand_beside_the_run(run: Path) -> None:
    assert "Beside others" not in page_of(run)
    rows = [{"encoder": name, "top1": 40.5, "top5": 90, "seconds": 1.5} for name in ("runs/x", "pixels", HOSTILE)]
    result = {"kind": "probe", "protocol": "probe/1", "data": "patterns", "top1": 40.5, "top5": 90, "beside": rows}
    write_json(run / "eval" / "probe.json", result)
    page = page_of(run)
    table = page[page.index("Beside others") :].partition("</table>")[0]
    assert table.count("40.5 %") == 3 and "this run" in table and "pixels" in table and "<script>" not in table


def test_other_encoders_stand_beside_a_run_without_labels(run: Path) -> None:
    assert "Beside other encoders" not in page_of(run)
    numbers = {"num_features": 64, "copies": 61.25, "neighbours": 37.5, "rank": None, "seconds": 1.5}
    rows = [{"encoder": name, **numbers} for name in ("runs/x", "pixels", HOSTILE)]
    about = {"data": HOSTILE, "pictures": 1500, "checkpoint": "last", "step": 40}
    write_json(run / "eval" / "beside.json", {**about, "beside": rows})
    page = page_of(run)
    section = page[page.index("Beside other encoders") :].partition("</section>")[0]
    assert "1,500 pictures" in section and "step 40" in section and "<script>" not in section
    table = section.partition("</table>")[0]
    assert table.count("37.5 %") == 3 and "this run" in table and "pixels" in table and "runs/x" not in table
    write_json(run / "eval" / "beside.json", {**about, "beside": [{"encoder": 3}]})
    with pytest.raises(BadInput, match=r"beside\.json' is damaged \(beside\.0\.encoder\)"):
        page_of(run)


def test_demo_rows_are_the_big_numbers(run: Path) -> None:
    write_json(run / "eval" / "demo.json", {"raw pixels": 12.34, HOSTILE: 56.78})
    shown = big_numbers(page_of(run))
    assert shown[0] == ("12.3 ± 1.5 %", "raw pixels")
    assert shown[1][0] == "56.8 ± 2.2 %" and shown[1][1].startswith("&lt;script&gt;")


def test_false_negatives(run: Path) -> None:
    page = page_of(run)
    section = page[page.index("<h2>False negatives</h2>") :]
    assert '<th scope="row">all of them together</th><td>2.75</td>' in section
    assert "<td>409.3</td>" in section
    assert "10.0 % of the queue shows the class of the query" in section
    gallery = section[section.index('<div class="gallery">') : section.index("The worst pairs")]
    first, second = gallery.split('<div class="query-card">')[1:]
    assert first.count("✓") == 3 * 2
    assert first.count("✗") == 3 * 2
    assert first.count('class="plain"') == 3  # nobody knows
    assert first.count("2 of 5") == 3
    assert "✓" not in second
    assert "✗" not in second
    assert "87 %" in section[section.index("The worst pairs") :]


def test_a_method_without_soft_labels_has_no_such_section(run: Path) -> None:
    write_json(
        run / "eval" / "analysis.json", {"verdict": {"state": "good", "sentence": "Fine."}, "false_negatives": None}
    )
    (run / "eval" / "gallery.npz").unlink()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k != "false_negatives"} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert "<h2>False negatives</h2>" not in page_of(run)


def test_a_run_without_anything_yet_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"method": {"name": "msvq"}, "data": {"source": "x"}}))
    page = write_report(tmp_path).read_text()
    assert "<svg" not in page
    assert "Not finished: 0 steps." in page
    assert not (tmp_path / "figures").exists()
    (tmp_path / "config.yaml").unlink()
    assert "its settings are not known" in write_report(tmp_path).read_text()


def test_what_a_finished_run_lacks_is_named_if_it_could_have_it(tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text("{}")
    assert "the map of its features (eval/map.npz), nearest neighbours (eval/neighbours.npz)." in page_of(tmp_path)


def test_without_labels_there_is_neither_accuracy_nor_mark(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", names=()))
    assert "Do the features tell pictures apart?" in page
    assert "What belongs together is for you to judge" in page
    assert "kNN" not in page
    assert "✓ " not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_values_that_are_no_numbers_are_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "eval", "epoch": 4, "step": 140, "knn_top1": NaN, "rank": null}\n')
    assert "kNN accuracy over epoch: from 30.0 % to 33.0 %" in page_of(run)


def test_a_column_has_a_number_and_bold_needs_two(run: Path) -> None:
    other = make_run(run.parent / "other", method="mocov2")
    (other / "eval" / "linear.json").unlink()
    analysis = json.loads((other / "eval" / "analysis.json").read_text())
    write_json(other / "eval" / "analysis.json", analysis | {"verdict": {}})
    page = page_of(run, other)
    table = page[page.index("What was measured") :].partition("</table>")[0]
    assert "<b>33.0 %</b>" in table and "<td>70.0 %</td>" in table and "<th>verdict</th>" in table
    write_json(run / "eval" / "analysis.json", {"false_negatives": {"all": {"found": None, "entropy": 1.5}}})
    page = page_of(run, other)
    assert "<th>verdict</th>" not in page
    section = page[page.index("<h2>False negatives</h2>") :].partition("</table>")[0]
    assert section.count("<th>") == 2 and "<td>1.50</td>" in section


def test_every_picture_says_what_it_is(run: Path) -> None:
    told = re.findall(r'<img src="data:[^"]*" alt="([^"]*)"', page_of(run))
    assert told and "" not in told and "picture" not in told
    assert any(words.endswith("picture 1") for words in told)
    assert any(words.endswith("neighbour 2 of picture 1 before training") for words in told)
    assert any(words.endswith("found 1 of query 2 by view3") for words in told)


def test_several_runs_are_compared(run: Path) -> None:
    page = page_of(run, make_run(run.parent / "other", method="mocov2"))
    assert "<h1>2 runs compared</h1>" in page
    assert "&lt;script&gt;alert(1)&lt;script&gt; from 30.0 % to 33.0 %; other from 30.0 % to 33.0 %" in page
    table = page[page.index("What was measured") :]
    for words in ("mocov2", "<b>33.0 %</b>", "<b>70.0 %</b>", "<b>2.75</b>", "collapsing"):
        assert words in table[: table.index("</section>")]
    assert page.count('<div class="run"') == 2
    assert page.count('class="sheet"') == 1  # the same pictures in both maps


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run"))
    assert 'data-title="a/run"' in page
    assert 'data-title="b/run"' in page


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'.*nothing' is not a run directory"):
        write_report(tmp_path / "nothing")


def test_where_the_page_goes(run: Path) -> None:
    assert write_report(run, figures=False) == run / "report.html"
    assert write_report([run, run], figures=False) == run.parent / "report.html"


def test_one_of_something_is_no_plural_and_no_picture_is_just_a_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path / "x", names=("cat", "dog"))
    knn = json.loads((run / "eval" / "knn.json").read_text())
    write_json(run / "eval" / "knn.json", {**knn, "confusion": [[5, 1], [0, 5]]})
    page = page_of(run)
    assert "taken for “dog”: 1 time, 16.7 %" in page and ": 1 time (16.7 %)" in page
    run = make_run(tmp_path / "y", names=())
    saved = dict(np.load(run / "eval" / "groups.npz"))
    np.savez(run / "eval" / "groups.npz", **saved | {"sizes": np.array([9, 1]), "typical_names": np.array([""] * 5)})
    page = page_of(run)
    assert "1 picture <small>" in page and 'alt="picture"' not in page
    assert page.count('alt="typical of group 2"') == 2 and 'alt="odd one 2"' in page


def test_beside_others_an_accuracy_has_its_error_and_chance(run: Path) -> None:
    knn = json.loads((run / "eval" / "knn.json").read_text())
    rows = [{"encoder": "x", "top1": 61.5, "top5": 90.0}, {"encoder": "pixels", "top1": "text", "top5": 50.0}]
    write_json(run / "eval" / "knn.json", {**knn, "num_test": 400, "chance": 12.5, "beside": rows})
    page = page_of(run)
    assert page.count("<td>61.5 ± 2.4 %</td><td>90.0 ± 1.5 %</td>") == 1 and "<td>–</td><td>50.0 ± 2.5 %</td>" in page
    assert '<th scope="row">by chance</th><td>12.5 %</td>' in page
    assert "<th>chance</th>" in summary(run) and "<td>12.5 %</td>" in summary(run)


def test_confused_pairs() -> None:
    pairs = confused_pairs([[8, 2, 0], [5, 4, 1], [0, 0, 9]], ["a", "b", "c"])
    assert [(p["truth"], p["guess"], p["count"]) for p in pairs] == [("b", "a", 5), ("a", "b", 2), ("b", "c", 1)]
    assert pairs[0]["share"] == 0.5


def test_results_that_do_not_stand_for_the_run_are_not_taken_for_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=("cat", "dog"))
    knn = json.loads((run / "eval" / "knn.json").read_text())
    other = {**knn, "class_names": ["x", "y"], "transfer": True, "data": "other"}
    (run / "eval" / "knn-on-other.json").write_text(json.dumps(other))  # comes before knn.json
    assert confusion(read_record(run))["names"] == ["cat", "dog"]
    linear = json.loads((run / "eval" / "linear.json").read_text())
    for step, counts in ((99, True), (33, False)):  # the run has 99 steps: after 33 it was another encoder
        (run / "eval" / "linear.json").write_text(json.dumps({**linear, "step": step}))
        record = read_record(run)
        assert (record.result("linear") is not None) == counts
        assert ("linear" in comparison([record])["columns"]) == counts


def test_many_classes_are_a_list_of_pairs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", names=tuple(f"class-{index}" for index in range(21)))
    table = confusion(read_record(run))
    assert table["rows"] == []
    assert len(table["pairs"]) == 15
    assert (table["pairs"][0]["truth"], table["pairs"][0]["guess"]) == ("class-0", "class-20")
    assert "21 classes are too many" in page_of(run)


def test_files_that_are_taken_wrongly_are_listed(run: Path) -> None:
    knn = json.loads((run / "eval" / "knn.json").read_text())
    assert "taken wrongly" not in page_of(run)
    mistakes = [{"name": f"cat/{number}<b>.jpg", "class": "cat", "guess": "dog"} for number in range(201)]
    (run / "eval" / "knn.json").write_text(json.dumps({**knn, "mistakes": mistakes}))
    page = page_of(run)
    assert "201 pictures taken wrongly" in page and "eval/knn.json lists the others" in page
    assert "<b>cat/199&lt;b&gt;.jpg</b>: cat taken for dog" in page and "cat/200" not in page


@pytest.mark.parametrize(("height", "width"), [(8, 8), (11, 11), (48, 48), (24, 32), (32, 24), (9, 40)])
def test_sprite_sheet_holds_each_picture_in_its_place(height: int, width: int) -> None:
    flat = np.random.default_rng(0).integers(256, size=(7, 1, 1, 3), dtype=np.uint8)
    sheet = sprite_sheet(np.broadcast_to(flat, (7, height, width, 3)).copy())
    size = sheet["size"]  # the page cuts out squares of it
    assert size == max(height, width)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["src"].split(",")[1]))).convert("RGB"))
    for index in range(7):
        top, left = (place * sheet["step"] for place in divmod(index, sheet["columns"]))
        tile = picture[top : top + size, left : left + size].astype(int)
        assert abs(tile - flat[index]).max() <= 4


def test_a_map_of_pictures_that_are_not_square_has_a_page(run: Path) -> None:
    saved = dict(np.load(run / "eval" / "map.npz"))
    np.savez(run / "eval" / "map.npz", **saved | {"images": np.zeros((60, 24, 32, 3), np.uint8)})
    assert '"size": 32' in page_of(run)


def test_without_a_confusion_matrix_the_page_has_all_else(run: Path) -> None:
    knn = json.loads((run / "eval" / "knn.json").read_text())
    del knn["confusion"]
    write_json(run / "eval" / "knn.json", knn)
    page = page_of(run)
    assert "Which classes are confused?" not in page
    assert "<td>61.5 %</td>" in page


def test_a_full_page_is_small(run: Path) -> None:
    saved = dict(np.load(run / "eval" / "map.npz"))
    num = 1500
    noise = np.random.default_rng(0).integers(256, size=(num, 48, 48, 3), dtype=np.uint8)  # nothing is harder to pack
    smooth_noise = np.cumsum(noise.astype(float), axis=2) / 48
    saved |= {name: np.resize(saved[name], (num, *saved[name].shape[1:])) for name in saved if name != "class_names"}
    np.savez(run / "eval" / "map.npz", **saved | {"images": smooth_noise.astype(np.uint8)})
    assert len(page_of(run)) < 3_000_000


def test_smoothing_keeps_the_mean() -> None:
    points = [(float(x), float(x % 7)) for x in range(1000)]
    curve = smooth(points)
    assert len(curve) == 200
    assert np.mean([y for _, y in curve]) == pytest.approx(np.mean([y for _, y in points]))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_lack_a_part_or_are_of_another_kind_are_refused(run: Path, name: str) -> None:
    run = make_run(run.parent / "unlabelled", names=()) if name == "groups" else run
    path = run / "eval" / f"{name}.npz"
    whole = dict(np.load(path))
    for key in ARRAYS[name]:
        for changed in ({k: v for k, v in whole.items() if k != key}, whole | {key: np.array(["text"])[None]}):
            np.savez(path, **changed)
            with pytest.raises(BadInput, match=f"{name}.npz"):
                read_record(run).arrays(name)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_page_with_figures_of_tampered_arrays_is_a_page_or_a_sentence(run: Path, name: str) -> None:
    run = make_run(run.parent / "unlabelled", names=()) if name == "groups" else run
    path = run / "eval" / f"{name}.npz"
    whole = dict(np.load(path))
    refused = []
    for key, value in whole.items():
        wrong = [value[:1], value[:0], value[..., :1], value[None], np.full_like(value, 9)]
        wrong += [np.full_like(value, 10**12)] if value.dtype.kind == "i" else []
        wrong += [np.full_like(value, np.nan)] if value.dtype.kind == "f" else []
        for changed in wrong:
            np.savez(path, **whole | {key: changed})
            try:
                draw = draw_maps([read_record(run)])
                if draw and name == "map":
                    draw(Figure())
                page_of(run)
            except BadInput as error:
                refused.append(str(error))
    assert all(str(path) in sentence for sentence in refused) and len(refused) > 2 * len(whole)
