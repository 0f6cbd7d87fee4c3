"""Encoders that come with the package, or that it knows on the hub, by their names; `bundled/index.json` lists them."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

BUNDLED = Path(__file__).with_name("bundled")


class Pretrained(BaseModel, frozen=True):
    """An encoder of the list: its `file` lies beside the list, and `encoder` is its `encoder.json`; or `hub` has it."""

    name: str
    data: str
    method: str
    epochs: int
    knn: float | None = None  # top-1 in percent, by the frozen protocols
    linear: float | None = None
    chance: float | None = None  # of naming one class always
    licence: str
    sha256: str  # of the file of weights
    file: str | None = None
    hub: str | None = None  # OWNER/NAME
    encoder: dict[str, Any] | None = None


def list_pretrained() -> list[Pretrained]:
    """All of them, in the order of the list."""
    return TypeAdapter(list[Pretrained]).validate_python(json.loads((BUNDLED / "index.json").read_bytes()))


def find_pretrained(name: str) -> Pretrained | None:
    """The one of this name."""
    return next((entry for entry in list_pretrained() if entry.name == name), None)
