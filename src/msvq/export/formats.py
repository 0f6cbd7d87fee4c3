"""The formats by name: what each writes, how it is loaded, and which encoders it can hold."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from msvq.errors import BadInput, unknown
from msvq.export import network
from msvq.export.libraries import OWN_WIDTH, Building, Refused, build
from msvq.export.subject import Subject

WEIGHTS, ONNX, SCRIPT = "model.safetensors", "model.onnx", "model.pt"
INPUT, OUTPUT = "pixel_values", "features"


@dataclass(frozen=True)
class Plan:
    """How an encoder is written in a format, and the Python lines that load it as `encoder`."""

    write: Callable[[Path], None]  # into a folder
    imports: tuple[str, ...]
    lines: tuple[str, ...]
    library: str  # what a model hub calls the library that loads it
    config: dict[str, Any] = field(default_factory=dict)  # what config.json has besides the usual


@dataclass(frozen=True)
class Format:
    """A format: its plan, the libraries it takes, and the extra of msvq that installs them."""

    plan: Callable[[Subject], Plan]
    needs: tuple[str, ...] = ()
    extra: str = ""


def safetensors_plan(subject: Subject) -> Plan:
    """Weights under msvq's own names, and the code of the network or the library that has it."""
    kind = subject.network.rpartition(":")[0]
    if subject.network in network.LAYERS:
        width, stem = subject.backbone["width"], subject.backbone["stem"]
        made = f"encoder = ResNet({subject.network!r}, width={width}, stem={stem!r}).eval()"
        return Plan(
            _with_network_code(subject),
            ("import torch", "from network import ResNet", "from safetensors.torch import load_file"),
            (made, _filling()),
            "safetensors",
        )
    if kind not in ("torchvision", "timm"):
        raise Refused(f"{subject.network!r} is code of your own, which the weights alone cannot be used without")
    building = build(kind, subject)
    return _library_plan(subject, building, subject.encoder.state_dict(), building.prefix, "safetensors")


def torchvision_plan(subject: Subject) -> Plan:
    """Weights for torchvision's own network; its classifier is left out, a small stem put in."""
    building = build("torchvision", subject)
    return _library_plan(subject, building, building.weights(subject.encoder), "", "torchvision")


def timm_plan(subject: Subject) -> Plan:
    """A folder that `timm.create_model("local-dir:...")` opens; with a small stem, two lines more are needed."""
    building = build("timm", subject)
    weights = building.weights(subject.encoder)
    if building.replaced:
        return _library_plan(subject, building, weights, "", "timm")
    made = 'encoder = timm.create_model(f"local-dir:{Path(__file__).parent}", pretrained=True).eval()'
    return Plan(
        lambda folder: _save(weights, folder),
        ("import timm", "import torch"),
        (made,),
        "timm",
        _timm_config(subject, building),
    )


def onnx_plan(subject: Subject) -> Plan:
    """One file for ONNX Runtime and all that reads ONNX, for any number of pictures at once."""
    made = f'encoder = onnxruntime.InferenceSession(Path(__file__).parent / "{ONNX}")'
    tensors = {"input": {"name": INPUT}, "output": {"name": OUTPUT}}
    return Plan(lambda folder: _write_onnx(subject, folder / ONNX), ("import onnxruntime",), (made,), "onnx", tensors)


def torchscript_plan(subject: Subject) -> Plan:
    """One file that `torch.jit.load` opens without any code of the network."""
    made = f'encoder = torch.jit.load(Path(__file__).parent / "{SCRIPT}")'
    return Plan(lambda folder: _write_script(subject, folder / SCRIPT), ("import torch",), (made,), "pytorch")


FORMATS: Mapping[str, Format] = {
    "safetensors": Format(safetensors_plan),
    "torchvision": Format(torchvision_plan),
    "timm": Format(timm_plan, ("timm",), "timm"),
    "onnx": Format(onnx_plan, ("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "torchscript": Format(torchscript_plan),
}


def check_format(name: str) -> Format:
    """The format of that name, with everything it needs installed."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    missing = [library for library in FORMATS[name].needs if find_spec(library) is None]
    if missing:
        raise BadInput(f"--format {name} needs {missing[0]}; pip install 'msvq[{FORMATS[name].extra}]' gives it")
    return FORMATS[name]


def make_plan(name: str, subject: Subject) -> Plan:
    """How the encoder is written in a format; one that cannot hold it is refused, with those that can."""
    try:
        return check_format(name).plan(subject)
    except Refused as refusal:
        others = [other for other in FORMATS if other != name and _may_hold(other, subject)]
        raise BadInput(f"{refusal}; formats that can hold it: {', '.join(others)}") from None


def _may_hold(name: str, subject: Subject) -> bool:
    """Whether the format can hold the encoder, as far as its name and width tell."""
    kind, own = subject.network.rpartition(":")[0], subject.network in network.LAYERS
    if name in ("torchvision", "timm"):
        return kind == name or (own and subject.backbone["width"] == OWN_WIDTH)
    return name != "safetensors" or own or kind in ("torchvision", "timm")


def _library_plan(subject: Subject, building: Building, weights: dict[str, Tensor], prefix: str, format: str) -> Plan:
    imports = ["import torch", f"import {building.library}", "from safetensors.torch import load_file"]
    return Plan(
        lambda folder: _save(weights, folder),
        tuple(imports),
        (*building.lines(), _filling(prefix), "encoder.eval()"),
        format if format != "timm" else "pytorch",  # a hub would offer timm's one line, which does not do here
    )


def _filling(prefix: str = "") -> str:
    read = f'load_file(Path(__file__).parent / "{WEIGHTS}")'
    if prefix:
        read = f"{{name.removeprefix({prefix!r}): value for name, value in {read}.items()}}"
    return f"encoder.load_state_dict({read})"


def _with_network_code(subject: Subject) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _save(subject.encoder.state_dict(), folder)
        (folder / "network.py").write_text(getsource(network), encoding="utf-8")

    return write


def _save(weights: dict[str, Tensor], folder: Path) -> None:
    # clone: tensors that share memory cannot be saved
    save_file({name: value.clone().contiguous() for name, value in weights.items()}, folder / WEIGHTS, {"format": "pt"})


def _timm_config(subject: Subject, building: Building) -> dict[str, Any]:
    """What timm reads of config.json to build the network, and to resize and normalise its pictures."""
    more = {key: value for key, value in building.arguments.items() if key != "num_classes"}
    return {
        "architecture": building.name.partition(".")[0],
        "num_classes": 0,
        **({"model_args": more} if more else {}),
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, subject.size, subject.size],
            "fixed_input_size": bool(more),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(subject.mean),
            "std": list(subject.std),
            "custom_load": False,
        },
    }


def _example(subject: Subject) -> Tensor:
    """Two pictures: a batch of one would be taken for a fixed size."""
    return torch.rand(2, 3, subject.size, subject.size)


def _write_onnx(subject: Subject, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    with _quiet():
        torch.onnx.export(
            subject.encoder,
            (_example(subject),),
            path,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: batch},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )


def _write_script(subject: Subject, path: Path) -> None:
    with _quiet(), torch.inference_mode():
        torch.jit.trace(subject.encoder, _example(subject)).save(str(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters tell of deprecations and of their steps; what counts is whether the result is the same."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
