"""Tiny ImageNet as its official archive has it: JPEG files, and the labels of val/ in a text file."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from msvq.core.errors import BadInput
from msvq.data.folders import walk
from msvq.data.listing import Listing, arrange


def list_tiny_imagenet(path: Path) -> Listing:
    """train/<wnid>/images/*.JPEG and val/images/*.JPEG with val_annotations.txt; val is the test split."""
    train, val = walk(path / "train"), walk(path / "val")
    if not train.names or not val.names:
        raise BadInput(f"{path} holds no pictures in {'val' if train.names else 'train'}/; extract the archive again")
    ids = sorted({name.split(os.sep)[0] for name in train.names})
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    wnid_of, annotations = {}, path / "val" / "val_annotations.txt"
    if annotations.is_file():
        lines = annotations.read_text(encoding="utf-8", errors="replace").splitlines()
        wnid_of = dict(line.split("\t")[:2] for line in lines if line.count("\t"))
    # Some people sort val/ into class folders; then the folder tells.
    val_ids = [wnid_of.get(name.split(os.sep)[-1], name.split(os.sep)[0]) for name in val.names]
    labels = [label_of[name.split(os.sep)[0]] for name in train.names] + [label_of.get(wnid, -1) for wnid in val_ids]
    names = [f"train{os.sep}{name}" for name in train.names] + [f"val{os.sep}{name}" for name in val.names]
    listing = arrange(
        str(path),
        names,
        np.array(train.stamps + val.stamps, np.int64),
        np.array(labels, np.int64),
        num_train=len(train.names),
        class_names=_tiny_names(path, ids),
    )
    return replace(listing, num_others=train.num_others + val.num_others, unlisted=(*train.unlisted, *val.unlisted))


def _tiny_names(path: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word for each class, its id where that is missing or another's too."""
    words = dict.fromkeys(ids, "")
    if (path / "words.txt").is_file():
        for line in (path / "words.txt").read_text(encoding="utf-8", errors="replace").splitlines():
            wnid, _, meaning = line.partition("\t")
            if wnid in words:
                words[wnid] = meaning.partition(",")[0].strip()
    used = list(words.values())
    return tuple(word if word and used.count(word) == 1 else wnid for wnid, word in words.items())
