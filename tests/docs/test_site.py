"""The documentation as a site: it builds without a warning, needs no network, and its reference is complete."""

import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.reference import PAGES as REFERENCE
from tests.docs.commands import ROOT, Command, problem
from tests.report.browser import Browser, find_chromium

import msvq
from msvq.cli import app
from msvq.config.describe import comments_of
from msvq.config.resolve import recipe_names
from msvq.config.settings import Settings
from msvq.core.schema import Section
from msvq.evaluate.protocols import PROTOCOLS
from msvq.methods import METHODS
from msvq.methods.keywords import KEYWORDS

pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'msvq[docs]' gives it")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a person builds it, from wherever they are."""
    folder, elsewhere = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["NO_MKDOCS_2_WARNING"] = "1"  # of Material's end of life
    built = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    for page in [*pages, *map(Path, REFERENCE)]:
        assert (site / page.with_suffix(".html")).is_file(), page
    assert not list(site.rglob("*.py"))


def test_nothing_is_fetched_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"' >]+)", text)
        loaded += re.findall(
            r"<link\b[^>]*\brel=[\"']?(?:stylesheet|preconnect|icon)[^>]*\bhref=[\"']?([^\"' >]+)", text
        )
        assert loaded
        assert [url for url in loaded if re.match(r"(?:https?:)?//", url)] == [], page


def test_what_leaves_the_site_is_named_not_linked(site: Path) -> None:
    text = (site / "your-own-method.html").read_text(encoding="utf-8")
    assert "<code>examples/your_own_method.py</code>" in text
    assert 'href="../examples' not in text


def test_a_fault_ends_the_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for entry in ROOT.iterdir():
        if entry.name != "docs":
            (tmp_path / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "start.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](gone.md) [b](methods.md#gone) [c](../src/gone.py)\n")
    (tmp_path / "docs" / "stray.md").write_text("# In no menu\n")
    with caplog.at_level(logging.WARNING, logger="mkdocs"), pytest.raises(Abort):
        build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "out")))
    for words in ("'gone.md'", "'methods.md#gone'", "../src/gone.py, which is not there", "stray.md"):
        assert any(words in message for message in caplog.messages), words


def test_the_reference_has_every_command_and_its_options_are_real() -> None:
    text = REFERENCE["reference/commands.md"]()
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.callback.__name__
        part = text.split(f"## msvq {name}\n")[1].split("\n## ")[0]
        options = re.findall(r"^\| `(--[\w-]+)", part, re.MULTILINE)
        assert len(options) == len(set(options))
        for option in options:
            assert "No such option" not in problem(Command(f"msvq {name} {option}", "reference", 0), whole=False)


def test_the_reference_has_every_setting_method_and_recipe() -> None:
    settings, methods = REFERENCE["reference/settings.md"](), REFERENCE["reference/methods.md"]()
    for section, values in Settings().model_dump().items():
        if section != "method":
            for key in values:
                assert f"`{section}.{key}" in settings
    assert "\n| `muon` | `" in settings
    for name, kind in METHODS.items():
        part = methods.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert all(f"| `method.{key}` |" in part for key in kind.hyperparameters())
    for name in recipe_names():
        assert f"\n## {name}\n" in REFERENCE["reference/recipes.md"]()


def test_the_reference_has_every_public_name_once_and_the_parts_that_are_shown() -> None:
    text = REFERENCE["reference/api.md"]()
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert sorted(one for one in headings if one.startswith("msvq.")) == sorted(
        f"msvq.{name}" for name in msvq.__all__ if name != "__version__"
    )
    assert "Callback = Callable[[Line], object]" in text
    assert headings.count("Embedded") == 0
    assert {"ResNet", "Augment", "Batch"} <= set(headings)  # of the loop in docs/library.md


def sections(kind: type[Section]) -> list[type[Section]]:
    inner = [type(field.default) for field in kind.model_fields.values() if isinstance(field.default, Section)]
    return [kind, *(deeper for one in inner for deeper in sections(one))]


def test_every_setting_and_keyword_is_told_in_words() -> None:
    plain = {"name", "stem", "lr", "weight_decay", "batch_size", "view"}  # the names or the choices say it
    for kind in {*sections(Settings), *(protocol.settings for protocol in PROTOCOLS.values())} - {Settings}:
        words = comments_of(kind)
        for key, field in kind.model_fields.items():
            told = words[key] or f"`{key}`" in (kind.__doc__ or "") or key in plain
            assert told or isinstance(field.default, Section), f"{kind.__name__}.{key} needs a comment beside it"
    keywords = {key for kind in METHODS.values() for key in kind.hyperparameters()}
    assert keywords <= set(KEYWORDS), f"methods/keywords.py lacks {keywords - set(KEYWORDS)}"
    assert set(KEYWORDS) <= keywords


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_repositorys_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert "://" in target or (ROOT / target).exists(), target


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium to read the site with")
def test_pages_and_search_work_from_disk(site: Path) -> None:
    program = find_chromium()
    assert program is not None
    with Browser(program) as browser:
        browser.open(site / "reference" / "commands.html", width=1300)
        browser.wait_for("document.querySelector('iframe')")
        browser.evaluate("document.querySelector('input.md-search__input').focus()")
        for letter in "collapse":
            browser.send("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
            browser.send("Input.dispatchKeyEvent", type="keyUp", key=letter)
        browser.wait_for("document.querySelectorAll('.md-search-result__item').length > 2")
        assert browser.errors == []
        assert [url for url in browser.requests if not url.startswith(("file:", "data:", "about:"))] == []
