"""Put the encoder of a finished run into the package: `python scripts/bundle_encoder.py runs/a NAME`.

Its weights in half precision, its card and its line of the list go to src/msvq/model/bundled.
"""

import hashlib
import json
import sys
from pathlib import Path

from msvq.core.errors import BadInput
from msvq.core.files import write_atomically, write_text
from msvq.evaluate.results import EvalResult, read_results
from msvq.model import pretrained
from msvq.runs.encoder import load_run_encoder, read_metadata, to_safetensors
from msvq.runs.run_dir import open_run

LARGEST = 1_600_000  # bytes of weights that an installation is made to carry
LICENCE = "mit"
CARD = """# {name}

{backbone} of width {width}, trained by {method} on {data} for {epochs} epochs ({steps:,} steps of {batch} pictures,
seed {seed}): pictures of {size} x {size} pixels go in, {dim} features come out. There is no classifier. It knows what
the pictures of {data} look like; for pictures of other things it is a start, not an end.

    msvq search {name} --data photos --query beach.jpg
    msvq pretrain --data photos --out runs/mine --init {name}

| protocol | data | top-1, % |
|---|---|---|
{rows}

Weights are in half precision, those of batch norm in single; the accuracies are of the run, in single precision.

Licence: {licence}. The pictures that it was learned from have conditions of their own.

All settings of the run:

```yaml
{settings}```
"""


def bundle(path: Path, name: str) -> list[Path]:
    """Write weights, card and list, where a line of the same name is replaced. Returns the files."""
    run = open_run(path)
    encoder, known, settings = load_run_encoder(run, "last"), read_metadata(run), run.config
    results = [result for result in read_results(run.path / "eval") if result.checkpoint == "last"]
    weights = {
        key: value.half() if value.ndim > 1 else value  # a variance of batch norm may be too small for half
        for key, value in encoder.network.state_dict().items()
        if value.is_floating_point()
    }
    content = to_safetensors(weights)
    if len(content) > LARGEST:
        raise BadInput(f"{len(content):,} bytes of weights are more than the {LARGEST:,} that the package may carry")
    digest = hashlib.sha256(content).hexdigest()
    entry = pretrained.Pretrained(
        name=name,
        data=encoder.data,
        method=settings.method_name,
        epochs=settings.train.epochs,
        knn=_top1(results, "knn"),
        linear=_top1(results, "linear"),
        licence=LICENCE,
        sha256=digest,
        file=f"{name}.safetensors",
        encoder=known.model_dump(mode="json") | {"weights_sha256": digest},
    )
    rows = [f"| {result.protocol} | {result.data} | {result.top1:.2f} |" for result in results if not result.transfer]
    card = CARD.format(
        name=name,
        backbone=settings.backbone.name,
        width=settings.backbone.width,
        method=entry.method,
        data=entry.data,
        epochs=entry.epochs,
        steps=encoder.step or 0,
        batch=settings.train.batch_size,
        seed=settings.train.seed,
        size=encoder.size,
        dim=encoder.feature_dim,
        rows="\n".join(rows),
        licence=LICENCE,
        settings=settings.model_copy(update={"data": settings.data.model_copy(update={"root": None})}).to_yaml(),
    )
    others = [other for other in pretrained.list_pretrained() if other.name != name]
    listed = [other.model_dump(mode="json", exclude_none=True) for other in (*others, entry)]
    files = [
        pretrained.BUNDLED / f"{name}.safetensors",
        pretrained.BUNDLED / f"{name}.md",
        pretrained.BUNDLED / "index.json",
    ]
    write_atomically(files[0], lambda file: file.write(content))
    write_text(files[1], card)
    write_text(files[2], json.dumps(listed, indent=2) + "\n")
    return files


def _top1(results: list[EvalResult], kind: str) -> float | None:
    """By all labels of the data that it was trained on, to the second decimal."""
    found = [r.top1 for r in results if r.kind == kind and not r.transfer and r.labels == 1]
    return round(found[-1], 2) if found else None


if __name__ == "__main__":
    try:
        for path in bundle(Path(sys.argv[1]), sys.argv[2]):
            sys.stdout.write(f"{path}\n")
    except (BadInput, IndexError) as error:
        sys.exit(str(error) if isinstance(error, BadInput) else __doc__)
