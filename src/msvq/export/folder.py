"""The files beside the encoder that say how to use it: settings for machines, and an example to run."""

import json
from collections.abc import Callable
from inspect import getsource
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from msvq.core.version import __version__
from msvq.data import to_rgb
from msvq.data.sources import is_path
from msvq.export import preprocess
from msvq.export.plans import INPUT, Plan
from msvq.model.hub import CONFIG, PROCESSOR
from msvq.report.templates import templates
from msvq.runs.encoder import LoadedEncoder
from msvq.runs.encoder_folder import CROP_FIRST


def write_folder(folder: Path, encoder: LoadedEncoder, plan: Plan, *, format: str) -> None:
    """Write all but the model card and the manifest, which tell how the check went."""
    plan.write(folder)
    _write_json(folder / CONFIG, config(encoder, plan, format=format))
    _write_json(folder / PROCESSOR, preprocessing(encoder))
    if encoder.run is not None:
        (folder / "training.yaml").write_text(training(encoder), encoding="utf-8")
    (folder / "preprocess.py").write_text(preprocess_code(), encoding="utf-8")
    (folder / "example.py").write_text(example(plan), encoding="utf-8")


def training(encoder: LoadedEncoder) -> str:
    """training.yaml: the settings of the run, as a recipe, without where things are on somebody's disk."""
    assert encoder.run is not None
    values = encoder.run.config.model_dump(mode="json")
    source = values["data"]["source"]
    values["data"] |= {"source": encoder.data if is_path(source) else source, "root": None}
    values["method"]["name"] = encoder.method
    values["backbone"] |= backbone_record(encoder)
    if values["backbone"].get("init"):
        values["backbone"]["init"] = Path(values["backbone"]["init"]).name
    return yaml.safe_dump(values, sort_keys=False)


def config(encoder: LoadedEncoder, plan: Plan, *, format: str) -> dict[str, Any]:
    """config.json: what the encoder is."""
    return {
        "model_type": "image-encoder",
        "format": format,
        "backbone": backbone_record(encoder),
        "num_features": encoder.feature_dim,
        "train_size": encoder.train_size,
        "input_size": [3, encoder.size, encoder.size],
        "made_by": f"msvq {__version__}",
        **plan.config,
    }


def backbone_record(encoder: LoadedEncoder) -> dict[str, Any]:
    """The backbone's settings that say what network it is."""
    kept = ("name", "width", "stem", "whiten") if encoder.backbone.is_resnet else ("name", "whiten")
    return {**{key: getattr(encoder.backbone, key) for key in kept}, "name": encoder.title}


def preprocessing(encoder: LoadedEncoder) -> dict[str, Any]:
    """preprocessor_config.json, in the words of the image processors of model hubs."""
    how = encoder.preprocessing
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": how.side, "width": how.side} if how.squash else {"shortest_edge": how.side},
        "resample": int(Image.Resampling[how.interpolation.upper()]),  # antialiased, as Pillow's always is
        CROP_FIRST: how.resize is None,
        "do_center_crop": True,
        "crop_size": {"height": encoder.size, "width": encoder.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(how.mean),
        "image_std": list(how.std),
    }


def preprocess_code() -> str:
    """preprocess.py, which needs no msvq: what it imports of it stands in the import's place."""
    shared = getsource(to_rgb).partition("from PIL import Image\n\n")[2]
    code = getsource(preprocess).replace("from msvq.data.to_rgb import Resizing, upright_square\n", shared)
    return code.replace("from typing import Any\n", "from typing import Any, NamedTuple\n")


def example(plan: Plan) -> str:
    """example.py: the encoder loaded by its library alone, and a picture fed to it."""
    imports = sorted({"from preprocess import prepare", *plan.imports}, key=lambda line: (line[:4] == "from", line))
    return fill("example.py.jinja", imports=imports, lines=plan.lines, input=INPUT)


def fill(template: str, *, finalize: Callable[[Any], str] = str, **values: Any) -> str:
    """The text of a template of ours; `finalize` makes text of each value."""
    environment = templates("export").overlay(autoescape=False, keep_trailing_newline=True, finalize=finalize)
    return environment.get_template(template).render(values)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
