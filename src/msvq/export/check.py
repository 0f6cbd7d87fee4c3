"""Run in a fresh process: example.py of an exported folder, as a person runs it, then its encoder on given tensors.

python check.py FOLDER QUESTION.npz ANSWER.npz PICTURE OTHER_PICTURE. It knows the folder and the libraries that
example.py imports; msvq cannot be imported.
"""

import json
import platform
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARIES = ("numpy", "PIL", "safetensors", "torch", "torchvision", "timm", "onnxruntime")


def features_of(encoder: Any, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """What an encoder of any of the libraries makes of pixels [N, 3, H, W]: [N, d]."""
    if hasattr(encoder, "run"):  # an ONNX session
        return np.asarray(encoder.run(None, {encoder.get_inputs()[0].name: pixels})[0])
    import torch

    with torch.inference_mode():
        return np.asarray(encoder(torch.from_numpy(pixels)).numpy())


def main(folder: str, question: str, answer: str, picture: str, other: str) -> None:
    """Answer with the features of the picture, of the other one, and of each array in the question."""
    sys.modules["msvq"] = None  # type: ignore[assignment]  # whoever imports it gets an ImportError
    sys.path.insert(0, folder)
    sys.argv = ["example.py", picture]
    run = runpy.run_path(str(Path(folder) / "example.py"), run_name="__main__")
    with np.load(question, allow_pickle=False) as arrays:
        found: dict[str, Any] = {name: features_of(run["encoder"], arrays[name]) for name in arrays.files}
    found["picture"] = np.asarray(run["features"])
    found["other"] = features_of(run["encoder"], run["prepare"](other))
    loaded = {
        name: sys.modules[name].__version__ for name in LIBRARIES if hasattr(sys.modules.get(name), "__version__")
    }
    found["libraries"] = np.array(json.dumps({"python": platform.python_version(), **loaded}))
    np.savez(answer, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
