"""`msvq demo` and what is in its way. That it runs is tested with the command line."""

import json
from pathlib import Path

import pytest

from msvq.cli.demo import MADE_BY, demo
from msvq.config.settings import Settings
from msvq.core.errors import BadInput


def test_a_demo_that_somebody_went_on_with_is_not_replaced(tmp_path: Path) -> None:
    files = {
        "config.yaml": Settings().to_yaml(),
        "environment.json": json.dumps({"made_by": MADE_BY, "resumed": [{"changed": {"train.epochs": [6, 60]}}]}),
        "report.html": "days of work",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match="holds a run that is not the demo's alone; choose another --out"):
        demo(out=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
