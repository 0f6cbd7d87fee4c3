"""What is shown is what was said: names are no markup, and no emoji."""

import io

from rich.console import Console

from msvq.core.console import Display

NAME = "[red]:cat:.npz"


def test_names_are_shown_as_they_are() -> None:
    shown = io.StringIO()
    display = Display(Console(file=shown, force_terminal=True, color_system=None, width=200))
    display.note(f"note {NAME}")
    with display.task(f"writing {NAME}", 2) as advance:
        advance(1)
    with display.busy(f"reading {NAME}"):
        pass
    for word in ("note", "writing", "reading"):
        assert f"{word} {NAME}" in shown.getvalue()


def test_a_note_goes_to_a_terminal_of_few_letters_as_escapes() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    Display(Console(file=file, width=200)).note("grün \u2013 日本 \x1b[31m")
    file.flush()
    assert raw.getvalue() == rb"gr\xfcn \u2013 \u65e5\u672c \x1b[31m" + b"\n"
