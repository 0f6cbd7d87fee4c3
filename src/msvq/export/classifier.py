"""An encoder with a classifier behind it as one ONNX file, compared with the original before it is called done."""

import json
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.errors import BadInput
from msvq.core.files import check_output_file
from msvq.export.plans import INPUT, check_format, export_onnx
from msvq.runs.encoder import LoadedEncoder

OUTPUT = "probabilities"
TOLERANCE = 1e-4  # of a probability
BATCH = 3  # pictures that are compared


class PictureClassifier(nn.Module):
    """Normalised pictures [N, 3, H, W] to probabilities [N, C]."""

    def __init__(self, encoder: nn.Module, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), nn.Parameter(bias, requires_grad=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Softmax of a linear layer on unit features."""
        return F.linear(F.normalize(self.encoder(pictures), dim=1), self.weight, self.bias).softmax(1)


def check_onnx(path: Path | None) -> None:
    """Raise if such a file is wanted and cannot be written there, or what writes it is not installed."""
    if path is not None:
        check_output_file("--onnx", path, [".onnx"])
        check_format("onnx")


def export_classifier(
    path: Path,
    encoder: LoadedEncoder,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    class_names: tuple[str, ...],
) -> None:
    """Write the file; its metadata name the classes, the size of pictures and how they are normalised."""
    check_onnx(path)
    encoder = encoder.to("cpu")
    network = PictureClassifier(encoder.network, torch.from_numpy(weight), torch.from_numpy(bias)).eval()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        export_onnx(network, encoder, temporary, OUTPUT)
        onnx = import_module("onnx")
        model = onnx.load(temporary)
        about = {"classes": list(class_names), **encoder.preprocessing.model_dump(mode="json")}
        onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in about.items()})
        onnx.save(model, temporary)
        _verify(temporary, network, encoder.size)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _verify(path: Path, network: nn.Module, size: int) -> None:
    """Raise if ONNX Runtime gives other probabilities."""
    pictures = np.random.default_rng(0).standard_normal((BATCH, 3, size, size), np.float32)
    session = import_module("onnxruntime").InferenceSession(path)
    (found,) = session.run(None, {INPUT: pictures})
    with torch.inference_mode():
        expected = network(torch.from_numpy(pictures)).numpy()
    difference = float(np.abs(found - expected).max())
    if not difference <= TOLERANCE:
        raise BadInput(
            f"the .onnx file gives other probabilities (by up to {difference:.2g}) than the classifier; it was not kept"
        )
