"""An encoder, written to a file that other tools read."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from msvq.core.console import printable
from msvq.core.errors import BadInput, first_line
from msvq.runs.encoder import LoadedEncoder

WEIGHTS, ONNX, SCRIPT = "model.safetensors", "model.onnx", "model.pt"
INPUT, OUTPUT = "pixel_values", "features"


def write_weights(encoder: LoadedEncoder, folder: Path) -> None:
    """Weights under the encoder's own names, which are torchvision's and timm's where the network is."""
    state = encoder.network.state_dict()
    # Copies: safetensors takes no two tensors that share memory.
    content = {name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    (folder / WEIGHTS).write_bytes(save(content, {"format": "pt"}))


def write_onnx(encoder: LoadedEncoder, folder: Path) -> None:
    """One file with the weights in it, for any number of pictures [N, 3, size, size] at once."""
    with _quiet("onnx"):
        torch.onnx.export(
            encoder.network,
            (_pictures(encoder),),
            folder / ONNX,
            input_names=[INPUT],
            output_names=[OUTPUT],
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
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
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
