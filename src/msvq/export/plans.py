"""The formats by name: what each writes, how it is loaded, and which encoders it can hold."""

import ast
import contextlib
import inspect
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from msvq.core.console import printable
from msvq.core.errors import BadInput, first_line, unknown
from msvq.export import network
from msvq.export.library_code import OWN_WIDTH, Building, Misfit, Refused, build, library_of
from msvq.model.hub import ONNX, WEIGHTS
from msvq.model.pooling import Pooled
from msvq.model.whitening import Whitened, without_whitening
from msvq.runs.encoder import LoadedEncoder

SCRIPT = "model.pt"
INPUT, OUTPUT = "pixel_values", "features"
CODE = "own_backbone"  # the module that a backbone of one's own becomes


@dataclass(frozen=True)
class Plan:
    """How an encoder is written in a format, and the Python lines that load it as `encoder`."""

    write: Callable[[Path], None]  # into a folder
    imports: tuple[str, ...]
    lines: tuple[str, ...]
    library: str  # what a model hub calls the library that loads it
    config: dict[str, Any] = field(default_factory=dict)  # what config.json has besides the usual


def safetensors_plan(encoder: LoadedEncoder) -> Plan:
    """Weights under msvq's own names, and the code of the network or the library that has it."""
    if (library := library_of(encoder.backbone.name)) is not None:
        return _library_plan(encoder, build(library, encoder), "safetensors")
    if encoder.backbone.is_resnet:
        name, code = "network", inspect.getsource(network)
        width, stem = encoder.backbone.width, encoder.backbone.stem
        wanted, made = "ResNet", [f"encoder = ResNet({encoder.backbone.name!r}, width={width}, stem={stem!r})"]
    else:
        file, _, wanted = encoder.backbone.name.rpartition(":")
        name, code = CODE, Path(file).read_text(encoding="utf-8")
        made = _own_lines(encoder, wanted, code)

    def write(folder: Path) -> None:
        write_weights(encoder, folder)
        (folder / f"{name}.py").write_text(code, encoding="utf-8")

    imports = ("import torch", f"from {name} import {wanted}", "from safetensors.torch import load_file")
    return Plan(write, imports, (*made, *_filling(encoder), "encoder.eval()"), "safetensors")


def torchvision_plan(encoder: LoadedEncoder) -> Plan:
    """Weights for torchvision's own network; its classifier is left out, a small stem put in."""
    return _library_plan(encoder, build("torchvision", encoder), "torchvision")


def timm_plan(encoder: LoadedEncoder) -> Plan:
    """A folder that `timm.create_model("local-dir:...")` opens; with a small stem, two lines more are needed."""
    building = build("timm", encoder)
    if building.changes or isinstance(encoder.network, Whitened):
        return _library_plan(encoder, building, "pytorch")  # a hub would offer timm's one line, which does not do here
    made = 'encoder = timm.create_model(f"local-dir:{Path(__file__).parent}", pretrained=True).eval()'
    imports = ("import timm", "import torch")
    return Plan(partial(write_weights, encoder), imports, (made,), "timm", _timm_config(encoder, building))


def onnx_plan(encoder: LoadedEncoder) -> Plan:
    """One file for ONNX Runtime and all that reads ONNX, for any number of pictures at once."""
    made = f'encoder = onnxruntime.InferenceSession(Path(__file__).parent / "{ONNX}")'
    tensors = {"input": {"name": INPUT}, "output": {"name": OUTPUT}}
    return Plan(partial(write_onnx, encoder), ("import onnxruntime",), (made,), "onnx", tensors)


def torchscript_plan(encoder: LoadedEncoder) -> Plan:
    """One file that `torch.jit.load` opens without any code of the network."""
    made = f'encoder = torch.jit.load(Path(__file__).parent / "{SCRIPT}")'
    return Plan(partial(write_script, encoder), ("import torch",), (made,), "pytorch")


def hf_plan(encoder: LoadedEncoder) -> Plan:
    """What the hub takes: for timm's one line where timm has this very network, else weights and their code."""
    if find_spec("timm") is not None:
        with contextlib.suppress(Refused):
            plan = timm_plan(encoder)
            if plan.library == "timm":
                return plan
    return safetensors_plan(encoder)


FORMATS: Mapping[str, Callable[[LoadedEncoder], Plan]] = {
    "safetensors": safetensors_plan,
    "torchvision": torchvision_plan,
    "timm": timm_plan,
    "hf": hf_plan,
    "onnx": onnx_plan,
    "torchscript": torchscript_plan,
}
NEEDS = {"timm": ("timm",), "onnx": ("onnx", "onnxscript", "onnxruntime")}  # which the extra of that name installs


def check_format(name: str) -> None:
    """Raise if there is no such format, or something that it needs is not installed."""
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    missing = [library for library in NEEDS.get(name, ()) if find_spec(library) is None]
    if missing:
        raise BadInput(f"--format {name} needs {missing[0]}; pip install 'msvq[{name}]' gives it")


def make_plan(name: str, encoder: LoadedEncoder) -> Plan:
    """How the encoder is written in a format; one that cannot hold it is refused, with those that can."""
    if not list(encoder.network.parameters()):
        raise BadInput(f"{encoder.name} has no weights that could be written in another format; give another encoder")
    try:
        return FORMATS[name](encoder)
    except Refused as refusal:
        wider = [other for other in FORMATS if other != name and _may_hold(other, encoder)]
        others = ["onnx", "torchscript"] if isinstance(refusal, Misfit) else wider
        raise BadInput(f"{refusal}; formats that can hold it: {', '.join(others)}") from None


def _may_hold(name: str, encoder: LoadedEncoder) -> bool:
    """Whether the format can hold the encoder, as far as its name and width tell."""
    if name not in ("torchvision", "timm"):
        return True
    own = encoder.backbone.is_resnet and encoder.backbone.width == OWN_WIDTH
    return own or library_of(encoder.backbone.name) == name


def _library_plan(encoder: LoadedEncoder, building: Building, hub_library: str) -> Plan:
    imports = ("import torch", f"import {building.library}", "from safetensors.torch import load_file")
    lines = (*building.lines(), *_filling(encoder), "encoder.eval()")
    return Plan(partial(write_weights, encoder), imports, lines, hub_library)


def _filling(encoder: LoadedEncoder) -> list[str]:
    """Put the layer that whitens the features behind the backbone, if there is one, and load the weights."""
    dim, filled = encoder.feature_dim, f'encoder.load_state_dict(load_file(Path(__file__).parent / "{WEIGHTS}"))'
    whitening = [
        "network, encoder = encoder, torch.nn.Sequential()",
        'encoder.add_module("network", network)',
        f'encoder.add_module("whitening", torch.nn.Linear({dim}, {dim}))',
    ]
    return [*(whitening if isinstance(encoder.network, Whitened) else []), filled]


def _own_lines(encoder: LoadedEncoder, function: str, code: str) -> list[str]:
    """The encoder made by a function of one's own, which may take the size and may leave maps to be averaged."""
    call = f"{function}({f'size={encoder.train_size}' if _takes_size(code, function) else ''})"
    if not isinstance(without_whitening(encoder.network), Pooled):
        return [f"encoder = {call}"]
    return [
        "encoder = torch.nn.Sequential()",
        f'encoder.add_module("network", {call})',
        "encoder.append(torch.nn.AdaptiveAvgPool2d(1)).append(torch.nn.Flatten())",
    ]


def _takes_size(code: str, function: str) -> bool:
    """Whether a function, or the constructor of a class, has a keyword `size`; the code is read and not run."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function:
            made = [inner for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)]
            arguments = next((one.args for one in made if one.name in (function, "__init__")), None)
            return arguments is not None and "size" in [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
    return False


def _timm_config(encoder: LoadedEncoder, building: Building) -> dict[str, Any]:
    """What timm reads of config.json to build the network, and to resize and normalise its pictures."""
    more = {key: value for key, value in building.arguments.items() if key != "num_classes"}
    how = encoder.preprocessing
    crop_pct = how.size / how.side
    if int(how.size / crop_pct) < how.side:  # which is how timm computes it
        crop_pct = math.nextafter(crop_pct, 0)
    return {
        "architecture": building.name.partition(".")[0],
        "num_classes": 0,
        **({"model_args": more} if more else {}),
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": [3, encoder.size, encoder.size],
            "fixed_input_size": list(more) == ["img_size"],
            "interpolation": how.interpolation,
            "crop_pct": crop_pct,
            "crop_mode": "squash" if how.squash else "center",
            "mean": list(how.mean),
            "std": list(how.std),
            "custom_load": False,
        },
    }


# --- The files of weights


def write_weights(encoder: LoadedEncoder, folder: Path) -> None:
    """Weights under the encoder's own names, which are torchvision's and timm's where the network is."""
    state = encoder.network.state_dict()
    # Copies: safetensors takes no two tensors that share memory.
    content = {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    (folder / WEIGHTS).write_bytes(save(content, {"format": "pt"}))


def write_onnx(encoder: LoadedEncoder, folder: Path) -> None:
    """One file with the weights in it, for any number of pictures [N, 3, size, size] at once."""
    export_onnx(encoder.network, encoder, folder / ONNX, OUTPUT)


def export_onnx(network: nn.Module, encoder: LoadedEncoder, path: Path, output: str) -> None:
    """Write a network that takes what an encoder takes."""
    with _quiet("onnx"):
        torch.onnx.export(
            network,
            (_pictures(encoder),),
            path,
            input_names=[INPUT],
            output_names=[output],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            dynamo=True,
            verbose=False,
        )


def write_script(encoder: LoadedEncoder, folder: Path) -> None:
    """One file with the network's steps and weights."""
    with _quiet("torchscript"), torch.no_grad():
        torch.jit.trace(encoder.network, _pictures(encoder)).save(str(folder / SCRIPT))


def _pictures(encoder: LoadedEncoder) -> Tensor:
    """Two, to follow the computation with: of one, an exporter would make a fixed number."""
    return torch.rand(2, 3, encoder.size, encoder.size)


@contextlib.contextmanager
def _quiet(format: str) -> Iterator[None]:
    """Exporters tell of deprecations and of their steps; what counts is whether the result is the same."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    except OSError:
        raise
    except Exception as error:  # of whatever kind: exporters follow code that they have never seen
        reason = error.__cause__ or error  # the first says in which step it was
        told = printable(first_line(reason))
        raise BadInput(f"{format} cannot hold this network ({told}); try --format safetensors") from error
    finally:
        logging.disable(before)
