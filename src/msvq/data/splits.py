"""What a reader of arrays has found."""

from dataclasses import dataclass

from msvq.data.store import ImageSplit


@dataclass(frozen=True)
class Splits:
    """Pictures in memory. Without labels, bank and test are empty. `notes` are sentences about what is missing."""

    train: ImageSplit
    bank: ImageSplit
    test: ImageSplit
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
