"""An encoder's folder on the Hugging Face hub: the files that are read of it, and how they are fetched."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from msvq.core.errors import BadInput
from msvq.model.libraries import first_sentence, silence_hub

HUB = "hf:"
WEIGHTS, ONNX = "model.safetensors", "model.onnx"
CONFIG, PROCESSOR, MANIFEST = "config.json", "preprocessor_config.json", "manifest.json"


def hub_library(repository: str) -> tuple[Any, Any]:
    """The hub's own library and its errors; raises if it is not there, or takes no such name."""
    try:
        hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    except ImportError:
        raise BadInput(f"{HUB}{repository} needs huggingface_hub; pip install 'msvq[hf]' gives it") from None
    silence_hub()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise BadInput(f"{repository!r} is no name of a model on the hub; it is OWNER/NAME")
    return hub, errors


def fetch_folder(repository: str) -> Path:
    """The files of a model on the hub that are read here, from the network or a cache; no code is fetched."""
    hub, errors = hub_library(repository)
    name = f"{HUB}{repository}"
    try:
        config = Path(hub.hf_hub_download(repository, CONFIG))
        known = read_json(config, name)
        ours = [PROCESSOR, MANIFEST] if "backbone" in known else []
        for file in (*ours, ONNX if known.get("format") == "onnx" else WEIGHTS):
            hub.hf_hub_download(repository, file)
    except BadInput:
        raise
    except errors.GatedRepoError:
        raise BadInput(f"{name} asks for a login that has accepted its terms: 'hf auth login'") from None
    except errors.RepositoryNotFoundError:
        raise BadInput(f"there is no {name}, or it is private and needs a login: 'hf auth login'") from None
    except Exception as error:  # of the network, of a file that is not there, in many kinds
        absent = isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError)
        if absent:
            raise BadInput(f"{name} is neither an export of msvq nor a timm model: it lacks files of theirs") from None
        told = first_sentence(error)
        raise BadInput(f"{name} cannot be fetched and is not in the cache ({told}); is there a network?") from error
    return config.parent


def read_json(path: Path, name: str) -> dict[str, Any]:
    """What a file of an encoder's folder says; `name`: what a person calls the encoder."""
    if not path.is_file():
        raise BadInput(f"{name} has no {path.name}, which an export of msvq has; it cannot be loaded")
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        raise damaged(name, path.name) from None


def damaged(name: str, file: str) -> BadInput:
    """The error for a file of an encoder's folder that is not as it was written."""
    return BadInput(f"{file} of {name} is damaged, or not as it was exported; export it anew, or fetch it again")
