"""Arrays that are kept on disk with checksums: read as they were written, or their damage is noticed and mended."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import PATIENCE, Advance, Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, lock, write_atomically, write_text

KEPT = 3  # caches of one origin; the oldest goes when another is made
SEAL = "sha256"  # the key of a card's own checksum
_BLOCK = 1 << 20


class Damaged(Exception):
    """Something is not what was written; the text says what."""


Manifest = dict[str, Any]
Content = tuple[Manifest, dict[str, NDArray[Any]]]  # the arrays by the names of their files


@dataclass(frozen=True)
class ArrayCache:
    """Flat arrays and a manifest with their checksums, in a folder that is there whole or not at all.

    The folder is named by a key of all that the arrays depend on. Beside it are those of the same origin, of which the
    newest are kept, and their lock.
    """

    folder: Path
    kind: str  # the manifest is `<kind>.json`
    dtypes: Mapping[str, str]  # of the arrays that are wanted, by the names of their files
    what: str  # in words
    display: Display

    def read_manifest(self) -> Manifest | None:
        """What was written down; None if there is nothing, or not all arrays that are wanted; or Damaged."""
        path = self.folder / f"{self.kind}.json"
        try:
            manifest = verified(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, AttributeError, Damaged):
            raise Damaged(path.name) from None
        if not self.dtypes.keys() <= manifest["files"].keys():
            return None
        if manifest["key"] != self.folder.name:
            raise Damaged("it belongs to other pictures or another encoder")
        return manifest

    def read(self, accept: Callable[[Manifest], bool]) -> Content | None:
        """Manifest and arrays, mapped; None if they are not there or not accepted; or Damaged."""
        manifest = self.read_manifest()
        if manifest is None or not accept(manifest):
            return None
        return manifest, map_checked(self.folder, self.dtypes, manifest["files"], self.display, self.what)

    def open(
        self,
        accept: Callable[[Manifest], bool],
        make: Callable[[], None],
        *,
        busy: str,
        on_damage: Callable[[Damaged], str],
    ) -> Content:
        """What is there, or is made now by `make`, which calls `write`."""
        with suppress(Damaged):
            if (found := self.read(accept)) is not None:
                return found
        found = None
        with lock(self.folder.parent / LOCK, on_busy=lambda: self.display.note(busy)):
            try:
                found = self.read(accept)  # another process may have made it meanwhile
            except Damaged as damage:
                self.display.note(on_damage(damage))
            if found is None:
                _remove_leftovers(self.folder.parent)
                make()
                found = self._read_back()
        return found

    def write(self, fill: Callable[[Path], Content]) -> None:
        """Write it beside its place, then move it there. `fill` gets a folder for large arrays and returns the rest."""
        place = self.folder.parent
        temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=place))
        try:
            manifest, arrays = fill(temporary)
            for name, array in arrays.items():
                write_atomically(temporary / name, array.astype(self.dtypes[name]).tofile)
            files = hash_files([temporary / name for name in self.dtypes], self.display)
            sealed = with_checksum({**manifest, "key": self.folder.name, "files": files})
            write_text(temporary / f"{self.kind}.json", json.dumps(sealed))
            shutil.rmtree(self.folder, ignore_errors=True)  # a damaged one, or one that was not accepted
            temporary.rename(self.folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for older in [folder for folder in self.newest_first() if folder != self.folder][KEPT - 1 :]:
            shutil.rmtree(older, ignore_errors=True)

    def newest_first(self) -> list[Path]:
        """All folders of the same kind and origin."""
        folders = [path.parent for path in self.folder.parent.glob(f"*/{self.kind}.json")]
        return sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True)

    def _read_back(self) -> Content:
        """What this process has just written, so that its checksums need not be compared."""
        place = f"the {self.kind} in {str(self.folder)!r}"
        try:
            if (manifest := self.read_manifest()) is not None:
                return manifest, map_checked(self.folder, self.dtypes, {}, self.display, self.what)
        except Damaged as damage:
            raise BadInput(f"{place} cannot be read back ({damage}); is the disk failing?") from None
        raise BadInput(f"{place} was deleted as soon as it was written; give the command again")


def _remove_leftovers(own: Path) -> None:
    """Remove what killed processes left here and in places like it: who holds the lock of a place is alone in it."""
    for stale in own.parent.glob("*/.*.tmp"):
        if stale.parent.is_symlink() or not (stale.parent / LOCK).is_file():
            continue  # nothing of ours
        with suppress(OSError), nullcontext() if stale.parent == own else lock(stale.parent / LOCK):
            shutil.rmtree(stale, ignore_errors=True)


def with_checksum(card: Mapping[str, Any], key: str = SEAL) -> dict[str, Any]:
    """The card with a checksum of all that it says."""
    return {**card, key: _hash_card(card)}


def verified(card: Mapping[str, Any], key: str = SEAL) -> dict[str, Any]:
    """What a sealed card says, or Damaged. Spaces and the order of its keys do not matter."""
    said = {name: value for name, value in card.items() if name != key}
    if card.get(key) != _hash_card(said):
        raise Damaged("it is not as it was written")
    return said


def _hash_card(card: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def map_checked(
    folder: Path, dtypes: Mapping[str, str], expected: Mapping[str, str], display: Display, what: str
) -> dict[str, NDArray[Any]]:
    """Files as flat arrays of these types, mapped; Damaged where one has not the checksum that is expected of it."""
    with ExitStack() as stack:
        try:
            files = {name: stack.enter_context((folder / name).open("rb", buffering=0)) for name in dtypes}
            found = _hash({name: files[name] for name in expected.keys() & dtypes.keys()}, f"checking {what}", display)
            for name, checksum in found.items():
                if checksum != expected[name]:
                    raise Damaged(name)
            # Copy-on-write, because torch wants arrays that could be written to; nothing ever is.
            return {name: np.memmap(file, dtypes[name], "c") for name, file in files.items()}
        except OSError as error:
            raise Damaged(error.strerror or "it cannot be read") from None


def hash_files(paths: Sequence[Path], display: Display) -> dict[str, str]:
    """The checksum of each file, by its name."""
    with ExitStack() as stack:
        files = {path.name: stack.enter_context(path.open("rb", buffering=0)) for path in paths}
        return _hash(files, "adding checksums", display)


def _hash(files: Mapping[str, FileIO], description: str, display: Display) -> dict[str, str]:
    """SHA-256: some 1.2 GB per second of a core that has instructions for it, a third of that elsewhere."""
    checksums, block = {}, bytearray(_BLOCK)
    total = sum(os.fstat(file.fileno()).st_size for file in files.values())
    with _patient_task(display, description, total) as advance:
        for name, file in files.items():
            digest = hashlib.sha256()
            # Read, not mapped: what a failing disk refuses is an error here, and would end the process there.
            while num := file.readinto(block):
                digest.update(memoryview(block)[:num])
                advance(num)
            checksums[name] = digest.hexdigest()
    return checksums


@contextmanager
def _patient_task(display: Display, description: str, total: int) -> Iterator[Advance]:
    """A bar for what is usually over at once: it appears after two seconds."""
    started, done = time.monotonic(), 0
    shown: Advance | None = None
    with ExitStack() as stack:

        def advance(num: int) -> None:
            nonlocal shown, done
            done += num
            if shown is not None:
                shown(num)
            elif time.monotonic() - started > PATIENCE:
                shown = stack.enter_context(display.task(description, total, in_bytes=True))
                shown(done)

        yield advance
