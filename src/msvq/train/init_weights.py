"""What a run starts from: weights of a file, of an earlier run or of a library, fitted to its backbone."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import expanduser, write_atomically
from msvq.core.user_code import is_user_code
from msvq.model.backbones import LIBRARY, make_backbone
from msvq.model.hub import HUB
from msvq.model.initial import MatchedWeights, match_state_dict, named_there, read_weights
from msvq.model.libraries import RANDOM, is_library, library_weights
from msvq.model.whitening import without_whitening
from msvq.runs.encoder import checkpoint_path, encoder_state, read_state, to_safetensors
from msvq.runs.encoder import read_weights as read_own_weights
from msvq.runs.encoder_folder import is_folder, load_folder
from msvq.runs.encoder_names import check_no_code, find_run, is_name, load_encoder
from msvq.runs.run_dir import INITIAL, WEIGHTS, open_run

LISTED = 12  # names of what was left out


class InitialWeights(NamedTuple):
    """Weights to start from, fitted to the backbone."""

    source: str
    matched: MatchedWeights
    content: bytes  # of the weights as a file

    @property
    def weights(self) -> dict[str, Tensor]:
        """By the backbone's own names."""
        return self.matched.weights

    @property
    def sha256(self) -> str:
        """Of the weights."""
        return hashlib.sha256(self.content).hexdigest()

    def note(self) -> str:
        """What matched, and what was left out, for a person."""
        named = named_there(self.matched.prefix, self.matched.layout)
        names = self.matched.left_out
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        left = f"; left out: {', '.join(names[:LISTED])}{more}" if names else ""
        others = f"; {self.matched.elsewhere:,} tensors elsewhere in it not looked at" if self.matched.elsewhere else ""
        return f"the backbone starts from {self.source}: all of its {len(self.weights)} tensors{named}{left}{others}"

    def record(self) -> dict[str, Any]:
        """For environment.json."""
        return {
            "from": self.source,
            "tensors": len(self.weights),
            "prefix": self.matched.prefix,
            "layout": self.matched.layout,
            "left_out": self.matched.left_out,
            "sha256": self.sha256,
        }

    def keep(self, out: Path) -> None:
        """Write the weights into a run directory, so that they can be compared with what was learned."""
        write_atomically(out / INITIAL, lambda file: file.write(self.content))


def load_initial_weights(settings: Settings, size: int) -> InitialWeights | None:
    """What `backbone.init` names, fitted to the backbone; None: it names nothing."""
    source = settings.backbone.init
    if source is None:
        return None
    with torch.random.fork_rng(devices=[]):
        own = without_whitening(make_backbone(settings.backbone, size)).state_dict()
    own_code = settings.backbone.name if is_user_code(settings.backbone.name) else None
    if source == LIBRARY:
        if own_code is not None:
            raise BadInput(f"--init library is for networks of torchvision and timm; {own_code} is code of your own")
        found = library_weights(settings.backbone.name, size)
    elif is_library(source) and not source.endswith(RANDOM):
        found = library_weights(source, size)
    elif is_name(source):
        named = own_code if source.startswith(HUB) else None
        found = without_whitening(load_encoder(source, backbone=named).network).state_dict()
    else:
        source = str(expanduser(source).absolute())
        found = weights_at(Path(source), own_code)
    fitted = match_state_dict(own, found, f"--init {source}")
    weights = {name: value.detach().to(own[name].dtype) for name, value in fitted.weights.items()}
    return InitialWeights(source, fitted._replace(weights=weights), to_safetensors(weights))


def weights_at(path: Path, own_code: str | None = None) -> dict[str, Tensor]:
    """The weights in a file, or the encoder of a run or an export; `own_code`: the backbone, if it is a file's."""
    if is_folder(path):
        return without_whitening(load_folder(path, str(path), own_code).network).state_dict()
    if path.is_dir():
        run = open_run(path)
        newest = checkpoint_path(run, "last")
        return read_own_weights(run) if newest.name == WEIGHTS else encoder_state(read_state(newest))
    if not path.is_file():
        if not path.suffix and path.parent == Path.cwd():  # a word
            find_run(path.name)  # which names the nearest
        raise BadInput(
            f"there is nothing to start from at --init {str(path)!r}; give a file of weights, the directory of a run, "
            f"'library' for the weights of torchvision or timm, or another encoder's name"
        )
    check_no_code(path)
    return read_weights(path)
