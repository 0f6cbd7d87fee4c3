"""The page in a real browser, as a person uses it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from tests.report.browser import Browser, find_chromium
from tests.report.fixtures import HOSTILE, make_run

from msvq.report.page import write_live_report, write_report
from msvq.runs.metrics import RunProgress

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (Debian: apt install chromium)")

READY = "document.getElementById('map').dataset.ready"
TIP = "document.querySelector('.tip')"
PINNED = "document.querySelector('.pinned')"


class Pages(NamedTuple):
    one: Path
    two: Path
    unlabelled: Path
    wordy: Path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    assert program is not None
    with Browser(program) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    folder = tmp_path_factory.mktemp("pages")
    hostile = make_run(folder / HOSTILE.replace("/", ""))
    other = make_run(folder / "other", method="mocov2", seed=1)
    plain = make_run(folder / "plain", names=())
    wordy = make_run(folder / ("run_of_many_words_" * 8), names=tuple(f"{'class_' * 12}{index}" for index in range(30)))
    return Pages(
        write_report(hostile, folder / "one.html", figures=False),
        write_report([hostile, other], folder / "two.html", figures=False),
        write_report(plain, folder / "plain.html", figures=False),
        write_report([wordy, other], folder / "wordy.html", figures=False),
    )


def position(browser: Browser, side: int, index: int) -> tuple[float, float]:
    browser.evaluate("document.querySelector('.panes').scrollIntoView()")
    x, y = browser.evaluate(f"document.getElementById('map').positionOf({side}, {index})")
    return x, y


@pytest.mark.parametrize("which", Pages._fields)
def test_no_errors_and_no_network(browser: Browser, pages: Pages, which: str) -> None:
    page = getattr(pages, which)
    browser.open(page)
    browser.wait_for(READY)
    browser.click(*position(browser, 0, 3))
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    assert browser.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")


def test_hover_shows_the_picture_in_both_maps(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one)
    browser.wait_for(READY)
    pixels = "document.querySelectorAll('.pane canvas')[1].toDataURL()"
    place = position(browser, 0, 42)
    before = browser.evaluate(pixels)
    assert browser.evaluate(f"{TIP}.hidden")
    browser.move(*place)
    browser.wait_for(f"!{TIP}.hidden")
    assert browser.evaluate(f"{TIP}.querySelector('b').textContent") == HOSTILE
    assert browser.evaluate(f"{TIP}.querySelector('small').textContent") == f"folder/{HOSTILE}42.png"
    drawn = f"{TIP}.querySelector('canvas').getContext('2d').getImageData(0, 0, 12, 12).data"
    assert browser.evaluate(f"new Set({drawn}).size") > 20  # a picture, not an empty square
    assert browser.evaluate(pixels) != before
    browser.move(5, 5)
    browser.wait_for(f"{TIP}.hidden")
    assert browser.evaluate(pixels) == before


def test_click_shows_neighbours(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one)
    browser.wait_for(READY)
    browser.click(*position(browser, 1, 20))
    names = f"[...{PINNED}.querySelectorAll('.row span')].map((one) => one.textContent)"
    assert browser.evaluate(names) == [f"✓ {HOSTILE}"] * 5 + ["✗ plain"]
    assert "5 of 6 of the same class" in browser.evaluate(f"{PINNED}.textContent")
    browser.evaluate(f"{PINNED}.querySelectorAll('.row button')[5].click()")  # walk on to picture 31
    assert browser.evaluate(f"{PINNED}.querySelector('small').textContent") == f"folder/{HOSTILE}31.png"
    assert browser.evaluate(names) == ["✓ plain"] * 5 + [f"✗ {HOSTILE}"]
    browser.evaluate(f"{PINNED}.querySelector('.close').click()")
    assert browser.evaluate(f"{PINNED}.hidden")


def test_a_reader_of_the_screen_is_told_of_classes_where_there_are_some(browser: Browser, pages: Pages) -> None:
    for page, told in ((pages.one, "kept. Of its neighbours: 5 of 6 of the same class."), (pages.unlabelled, "kept.")):
        browser.open(page)
        browser.wait_for(READY)
        browser.click(*position(browser, 1, 20))
        announced = browser.evaluate("document.querySelector('#map .announce').textContent")
        assert announced.endswith(told) and ("class" in announced) == ("class" in told)


def test_a_finger_does_the_same(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one, width=390, height=800)
    browser.wait_for(READY)
    browser.tap(*position(browser, 0, 20))
    browser.wait_for(f"!{PINNED}.hidden")
    assert browser.evaluate(f"{PINNED}.querySelector('small').textContent") == f"folder/{HOSTILE}20.png"


def test_the_keyboard_walks_the_map(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one)
    browser.wait_for(READY)
    browser.click(*position(browser, 0, 0))
    browser.evaluate("document.querySelector('.pane canvas').focus()")
    name = f"{TIP}.querySelector('small').textContent"
    for key, index in (("ArrowRight", 1), ("ArrowUp", 11), ("ArrowLeft", 10), ("ArrowDown", 0)):
        browser.press(key)  # "before" is a grid of ten columns
        assert browser.evaluate(name) == f"folder/{HOSTILE}{index}.png"
    browser.press("ArrowRight")
    browser.press("Enter")
    assert browser.evaluate(f"{PINNED}.querySelector('small').textContent") == f"folder/{HOSTILE}1.png"
    browser.press("Escape")
    assert browser.evaluate(f"{PINNED}.hidden && {TIP}.hidden")


def test_the_legend_lights_a_class(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one)
    browser.wait_for(READY)
    buttons = "[...document.querySelectorAll('.map-legend button')]"
    assert browser.evaluate(f"{buttons}.map((one) => one.querySelector('span').textContent)") == [HOSTILE, "plain"]
    pixels = "document.querySelector('.pane canvas').toDataURL()"
    before = browser.evaluate(pixels)
    browser.evaluate(f"{buttons}[1].click()")
    assert browser.evaluate(f"{buttons}.map((one) => one.getAttribute('aria-pressed'))") == ["false", "true"]
    assert browser.evaluate(pixels) != before
    browser.evaluate(f"{buttons}[1].click()")
    assert browser.evaluate(pixels) == before


def test_hostile_names_show_as_text(browser: Browser, pages: Pages) -> None:
    browser.open(pages.two)
    browser.wait_for(READY)
    assert browser.evaluate("document.querySelectorAll('script').length") == 3
    text = browser.evaluate("document.body.textContent")
    assert text.count(HOSTILE) > 20
    assert HOSTILE.replace("/", "") in browser.evaluate("document.querySelector('.tabs').textContent")
    assert browser.errors == []  # a dialogue would be one


def test_runs_by_tabs_and_maps_by_choice(browser: Browser, pages: Pages) -> None:
    browser.open(pages.two)
    browser.wait_for(READY)
    shown = "[...document.querySelectorAll('.run')].map((one) => !one.hidden)"
    assert browser.evaluate(shown) == [True, False]
    browser.evaluate("document.querySelectorAll('.tabs button')[1].click()")
    assert browser.evaluate(shown) == [False, True]
    chosen = "[...document.querySelectorAll('.pane select')].map((one) => one.selectedOptions[0].textContent)"
    assert browser.evaluate(chosen) == [HOSTILE.replace("/", "") + ", after training", "other, after training"]
    pixels = "document.querySelector('.pane canvas').toDataURL()"
    before = browser.evaluate(pixels)
    select = "document.querySelector('.pane select')"
    browser.evaluate(f"{select}.value = '0'; {select}.dispatchEvent(new Event('change'))")
    assert browser.evaluate(pixels) != before


def test_dark_and_light(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    browser.open(pages.one)
    browser.wait_for(READY)
    pixels = "document.querySelector('.pane canvas').toDataURL()"
    light = browser.evaluate(pixels)
    browser.screenshot(tmp_path / "light.png")
    browser.theme(dark=True)
    browser.wait_for(f"{pixels} !== '{light}'")
    browser.screenshot(tmp_path / "dark.png")
    corners = [Image.open(tmp_path / name).convert("L").getpixel((4, 4)) for name in ("light.png", "dark.png")]
    assert corners[0] > 200 > 60 > corners[1]  # type: ignore[operator]


@pytest.mark.parametrize("which", Pages._fields)
@pytest.mark.parametrize("width", [360, 700, 1400])
def test_the_page_fits_its_window(browser: Browser, pages: Pages, which: str, width: int) -> None:
    browser.open(getattr(pages, which), width=width, height=700)
    browser.wait_for(READY)
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.click(*position(browser, 0, 9))
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_map_is_sharp_on_a_fine_screen(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one, scale=2)
    browser.wait_for(READY)
    assert (
        browser.evaluate(
            "(() => { const one = document.querySelector('.pane canvas'); return one.width / one.clientWidth; })()"
        )
        == 2
    )
    browser.resize(800, 700, 2)
    browser.wait_for(
        "document.querySelector('.pane canvas').width === 2 * document.querySelector('.pane canvas').clientWidth"
    )


def test_a_page_of_a_run_that_trains_renews_itself_where_one_reads(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = run / "report.html"
    for step, seconds in ((40, 4), (60, 1)):
        write_live_report(run, RunProgress(step, 100, 60.0, running=True))
        page.write_text(page.read_text().replace('data-renew="20"', f'data-renew="{seconds}"'))
        if step == 40:
            browser.open(page, height=500)
            browser.evaluate("window.scrollTo(0, 700)")
            assert browser.evaluate("document.querySelector('.resume').hidden")
    browser.wait_for("document.querySelector('.progress .lead').textContent.includes('60 of 100 steps')")
    browser.wait_for("document.readyState == 'complete' && window.scrollY == 700")
    late = re.sub(r'data-late="\d+"', 'data-late="1"', page.read_text())
    page.write_text(late)
    browser.wait_for("!document.querySelector('.resume').hidden")  # no news for long: how to go on
    write_report(run, figures=False)
    browser.wait_for("!document.querySelector('.progress')")
    assert not browser.errors


def test_on_a_phone_accuracies_and_the_neighbours_after_training_come_first(browser: Browser, pages: Pages) -> None:
    browser.open(pages.one, width=420)
    browser.wait_for(READY)
    top = "((what) => document.querySelector(what).getBoundingClientRect().top)"
    order = [browser.evaluate(f"{top}({what!r})") for what in (".scores div:last-child", ".scores div:first-child")]
    order += [browser.evaluate(f"{top}({what!r})") for what in (".found.after", ".found.before", "#map", "#curves")]
    assert order == sorted(order)
    assert browser.evaluate(f"{top}('.pane:last-child') < {top}('.pane:first-child')")
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
