"""What a reader of arrays has found."""

from dataclasses import dataclass

from msvq.data.store import Pictures


@dataclass(frozen=True)
class Splits:
    """Pictures in memory. Without labels, bank and test are empty. `notes` are sentences about what is missing."""

    train: Pictures
    bank: Pictures
    test: Pictures
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
