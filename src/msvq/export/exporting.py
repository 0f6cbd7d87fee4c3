"""`msvq export`: an encoder in a format of other tools, in a folder that model hubs take."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import uuid4

from msvq.core.array_cache import hash_files
from msvq.core.console import Display
from msvq.core.errors import BadInput, first_line
from msvq.core.files import expanduser, holds_already
from msvq.core.version import __version__
from msvq.export.card import LONGEST, model_card, one_line
from msvq.export.folder import backbone_record, write_folder
from msvq.export.plans import check_format, make_plan
from msvq.export.verify import verify
from msvq.model.hub import MANIFEST, hub_library
from msvq.runs.encoder import LoadedEncoder
from msvq.runs.encoder_names import EncoderName, find_run, load_encoder

MAKER = "msvq export"  # by which a manifest of ours is known
CACHE = "__pycache__"  # which Python leaves where example.py has been run
RUN_FOLDERS = ("checkpoints", "eval", "figures")


class Exported(NamedTuple):
    """A finished export."""

    path: Path
    manifest: dict[str, Any]

    @property
    def max_abs_difference(self) -> float:
        """The largest difference from the original of any feature that was compared."""
        return float(self.manifest["checked"]["max_abs_difference"])


def export_encoder(
    name: EncoderName,
    *,
    format: str = "safetensors",
    out: str | Path | None = None,
    checkpoint: str = "last",
    backbone: str | None = None,
    licence: str = "unknown",
    overwrite: bool = False,
    push: str | None = None,
    display: Display | None = None,
) -> Exported:
    """Write an encoder to the folder `out` in a format of FORMATS, if it gives the same features there.

    The arguments are those of `msvq export`; `push` is a model on the hub that the folder is sent to, OWNER/NAME. With
    it `out` may be None: then the folder is gone once it was sent.
    """
    display = display or Display()
    check_format(format)
    if not licence.strip() or one_line(licence) != licence:
        raise BadInput(f"--licence is the name of a licence, such as mit, in one line of at most {LONGEST} letters")
    if push is not None:
        hub_library(push)
    elif out is None:
        raise BadInput("--out is missing, the folder to write to; only --push OWNER/NAME does without one")
    run = find_run(name, backbone=backbone)
    if out is not None:
        check_out(expanduser(out), overwrite=overwrite)
        if run is not None and expanduser(out).resolve() in [(run.path / own).resolve() for own in RUN_FOLDERS]:
            raise BadInput(f"--out {str(out)!r} is where the run keeps files of its own; choose another directory")
    encoder = load_encoder(run or name, checkpoint, backbone=backbone)
    if encoder.note:
        display.note(encoder.note)
    plan = make_plan(format, encoder)
    with TemporaryDirectory() as scratch:
        place = Path(scratch) / "export" if out is None else expanduser(out)
        with (
            display.task(f"exporting to {format}, and loading it back", 3) as advance,
            in_place_of(place, overwrite=overwrite) as folder,
        ):
            advance(0)
            write_folder(folder, encoder, plan, format=format)
            advance(1)
            checked = verify(folder, encoder)
            advance(1)
            text = model_card(encoder, plan, format=format, licence=licence, checked=checked, push=push)
            (folder / "README.md").write_text(text, encoding="utf-8")
            manifest = _manifest(folder, encoder, format, licence, checked)
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            advance(1)
        if push is not None:
            with display.busy(f"sending it to hf:{push}"):
                push_folder(place, push, "" if out is None else f"; the export is in {str(out)!r}")
    return Exported(place, manifest)


def push_folder(folder: Path, repository: str, kept: str) -> None:
    """Send an export to the hub, with the login of the hub's own library. `kept`: where it is now, for a sentence."""
    hub, errors = hub_library(repository)
    try:
        api = hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=[f"{CACHE}/*"])
    except errors.LocalTokenNotFoundError:
        raise BadInput(f"sending to hf:{repository} needs a login: 'hf auth login'{kept}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        if status in (401, 403):
            raise BadInput(
                f"hf:{repository} is not yours to write to, or needs a login ('hf auth login'){kept}"
            ) from None
        raise BadInput(f"the hub refused hf:{repository} ({first_line(error, 200)}){kept}") from error
    except Exception as error:  # of the network, in many kinds
        raise BadInput(f"hf:{repository} cannot be reached ({first_line(error, 200)}){kept}") from error


def check_out(out: Path, *, overwrite: bool) -> None:
    """Raise if the folder holds something already; nothing but the files of an earlier export is ever replaced."""
    listed = _listed(out)
    if not holds_already(out, "an export", listed is not None) or listed is None:
        return
    if not overwrite:
        raise BadInput(
            f"--out {str(out)!r} holds an export already; replace it with --overwrite, or choose another directory"
        )
    others = sorted(path.name for path in out.iterdir() if not _is_ours(path, listed))
    if others:
        raise BadInput(
            f"--out {str(out)!r} holds {others[0]!r}, which the export did not write and --overwrite would delete; "
            f"move it away, or choose another directory"
        )


def _listed(folder: Path) -> set[str] | None:
    """The files of an export by its manifest; None if the folder is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        return {MANIFEST, *manifest.get("sha256", {})} if manifest["made_by"] == MAKER else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_ours(path: Path, listed: set[str]) -> bool:
    if path.name == CACHE and path.is_dir():
        return all(file.suffix == ".pyc" for file in path.iterdir())
    return path.name in listed and path.is_file()


@contextmanager
def in_place_of(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder beside `out` to write to, which takes its place if all goes well and is gone if not."""
    place = out.resolve()  # behind a link, the folder that it points to
    place.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid4().hex[:8]
    temporary, old = (place.with_name(f".{place.name}.{mark}.{end}") for end in ("tmp", "old"))
    temporary.mkdir()
    try:
        yield temporary
        check_out(out, overwrite=overwrite)  # somebody may have put something there meanwhile
        try:
            if place.exists():
                place.rename(old)
            temporary.rename(place)
        except BaseException:  # an interruption too
            if old.exists() and not place.exists():
                old.rename(place)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if place.exists():  # else the old one is all there is
            shutil.rmtree(old, ignore_errors=True)


def _manifest(
    folder: Path, encoder: LoadedEncoder, format: str, licence: str, checked: dict[str, Any]
) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {
        "made_by": MAKER,
        "msvq": __version__,
        "format": format,
        "licence": licence,
        "method": encoder.method,
        "data": one_line(encoder.data),
        "backbone": backbone_record(encoder),
        "checkpoint": encoder.checkpoint,
        "step": encoder.step,
        "feature_dim": encoder.feature_dim,
        "checked": checked,
        "sha256": hash_files(files, Display()),
    }
