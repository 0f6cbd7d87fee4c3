"""What users and their files depend on, frozen: options, public names, keys of files; and the bits of one tiny run.

After an intended change: pytest tests/test_surface.py --update-golden, and say why in the commit.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import msvq
from msvq.cli import app

SURFACE = Path(__file__).with_name("surface.json")
# Arithmetic that every x86-64 machine has, so that the bits are the same on all of them. What numpy draws depends on
# its vector instructions; oneDNN adds up in blocks that fit into the caches.
FASTER = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "NPY_DISABLE_CPU_FEATURES": " ".join(FASTER)}
WITHOUT_ONEDNN = "import torch; torch.backends.mkldnn.set_flags(False); from msvq.cli import main; main()"
TINY = ["--data", "patterns", "--recipe", "smoke", "--epochs", "2", "--precision", "fp32", "--set", "data.limit=256"]
TINY += ["--set", "train.warmup_epochs=0.5"]

# What docs/ and examples/ import; people's own methods and loops do the same.
DOCUMENTED = {
    "msvq.data.augment": ["STRONG", "WEAK", "Augment"],
    "msvq.data.patterns": ["make_patterns"],
    "msvq.methods": ["MSVQ", "Batch"],
    "msvq.methods.base": ["Batch", "Count", "Loss", "Method", "Share"],
    "msvq.model.backbones": ["ResNet"],
    "msvq.model.heads": ["mlp"],
    "msvq.model.teacher": ["Backbone", "Network"],
}

Frozen = Callable[[str, Any], None]


@pytest.fixture
def frozen(request: pytest.FixtureRequest) -> Frozen:
    """Compare with what stands in the golden file under a name, or write it there."""

    def check(name: str, found: Any) -> None:
        golden = json.loads(SURFACE.read_text()) if SURFACE.exists() else {}
        if request.config.getoption("--update-golden"):
            golden[name] = found
            SURFACE.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
        assert found == golden[name]

    return check


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run in one thread, by the command itself in a process of its own."""
    out = tmp_path_factory.mktemp("golden") / "run"
    command = [sys.executable, "-c", WITHOUT_ONEDNN, "pretrain", *TINY, "--out", str(out)]
    subprocess.run(command, env={**os.environ, **PLAIN, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    return out


def test_commands_and_options(frozen: Frozen) -> None:
    group: Any = typer.main.get_command(app)
    options = {
        name: sorted(word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts))
        for name, command in sorted(group.commands.items())
    }
    frozen("options", options)


def test_public_names(frozen: Frozen) -> None:
    frozen("names", sorted(msvq.__all__))
    assert all(hasattr(msvq, name) for name in msvq.__all__)


@pytest.mark.parametrize("module", DOCUMENTED)
def test_documented_imports(module: str) -> None:
    assert all(hasattr(import_module(module), name) for name in DOCUMENTED[module])


def keys(value: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all keys of a JSON value; classes are data, not keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            if key != "by_class":
                yield from keys(inner, f"{prefix}{key}.")


def test_keys_of_the_files_of_a_run(run: Path, frozen: Frozen) -> None:
    msvq.load(run).probe()
    frozen("files", sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()))
    for file in ("encoder.json", "environment.json", *sorted(f"eval/{p.name}" for p in (run / "eval").glob("*.json"))):
        frozen(file, sorted(keys(json.loads((run / file).read_text()))))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kinds = {kind: [line for line in lines if line["kind"] == kind] for kind in sorted({li["kind"] for li in lines})}
    frozen("metrics.jsonl", {kind: sorted({k for line in some for k in keys(line)}) for kind, some in kinds.items()})
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    frozen("checkpoint", sorted(state))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other libraries of arithmetic")
def test_the_golden_run_has_the_same_bits(run: Path, frozen: Frozen) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]
    found = {
        "torch": torch.__version__.partition("+")[0],
        "encoder.safetensors": hashlib.sha256((run / "encoder.safetensors").read_bytes()).hexdigest(),
        "metrics.jsonl": hashlib.sha256(json.dumps(timeless, sort_keys=True).encode()).hexdigest(),
    }
    frozen("golden run", found)
