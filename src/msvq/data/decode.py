"""One picture from its file to uint8 [S, S, 3], or the reason why not. Worker processes load it: no torch here."""

import hashlib
import io
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from msvq.core.errors import BadInput
from msvq.core.ordinary_files import ordinary_size
from msvq.data.to_rgb import Resizing, fit_square, orientation, upright_square

# What a picture is known by in a folder. The content decides how it is read, so a PNG may be called .jpg.
EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
EXTENSIONS |= {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".avif", ".jp2"}
# Only these decoders are tried: none of them starts another program or reads another file.
_WANTED = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "TGA", "AVIF", "JPEG2000")
for _plugin in ("Jpeg", "Png", "Bmp", "Gif", "WebP", "Tiff", "Ppm", "Tga", "Avif", "Jpeg2K"):
    with suppress(ImportError):  # some builds of Pillow lack some
        import_module(f"PIL.{_plugin}ImagePlugin")
FORMATS = tuple(name for name in _WANTED if name in Image.OPEN)
MAX_PIXELS = 120_000_000  # decoded at once: up to some 1 GB per process, for pictures with transparency
MAX_BYTES = 2**30  # of a file: more than MAX_PIXELS take, even if they are not compressed
PASSING = ("may not be read", "cannot be read")  # reasons that may be gone when the file is the same
GONE = "is not there"
NO_MEMORY, KILLED = "needs more memory than there is", "ended the process that was reading it"  # perhaps only then
_SILENCE = threading.Lock()  # standard error is the process's: two threads would put back each other's silence

# What `examine` finds out about a picture.
IMAGE_RECORD = np.dtype(
    [
        ("width", "i4"),
        ("height", "i4"),
        ("mode", "U8"),
        ("format", "U8"),
        ("content", "S20"),  # SHA-1 of the file: equal files are equal pictures
        ("dhash", "u8"),  # one bit per pair of neighbours in an 8 x 9 thumbnail: near-equal pictures differ in few
        ("thumbnail", "u1", (8, 8, 3)),
    ]
)


class Unreadable(Exception):
    """A picture that is skipped; the text is the reason, in words that follow its name."""


def decode(picture: str | bytes, side: int, resizing: Resizing | None = None) -> NDArray[np.uint8]:
    """The picture in a file, or in bytes, upright, its centre square at [side, side, 3].

    The first frame of an animation; grey, palette, CMYK and 16-bit pictures become RGB; transparency becomes white.
    `resizing`: fitted as a library would, whose `side` it is.
    """
    return np.asarray(_read(read_content(picture), side, resizing))


def examine(picture: str | bytes) -> NDArray[np.void]:
    """What there is to know about a picture, as one entry of IMAGE_RECORD."""
    content = read_content(picture)
    small = _read(content, 72)
    with _opened(content) as image, warnings.catch_warnings(action="ignore"):
        size = image.size[::-1] if orientation(image) in (5, 6, 7, 8) else image.size
        return _record(size, image.mode, image.format or "", small, content)


def record_of(pixels: NDArray[np.uint8]) -> NDArray[np.void]:
    """The same about a picture that is an array [H, W, 3] already; its content is its pixels."""
    image = Image.fromarray(pixels)
    return _record(image.size, image.mode, "array", fit_square(image, 72), pixels.tobytes())


def _record(size: tuple[int, int], mode: str, kind: str, small: Image.Image, content: bytes) -> NDArray[np.void]:
    record = np.zeros((), IMAGE_RECORD)
    record["width"], record["height"] = size
    record["mode"], record["format"] = mode, kind
    record["content"] = hashlib.sha1(content, usedforsecurity=False).digest()
    grey = np.asarray(small.convert("L").resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = (grey[:, 1:] > grey[:, :-1]).reshape(-1)
    record["dhash"] = np.packbits(bits).view(">u8")[0]
    record["thumbnail"] = np.asarray(small.resize((8, 8), Image.Resampling.BOX))
    return record[()]


def header_size(picture: str | bytes) -> tuple[int, int] | None:
    """Width and height from the header alone, None where it cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore"):
            file = io.BytesIO(picture) if isinstance(picture, bytes) else picture
            if isinstance(file, str) and not ordinary_size(Path(file)):
                return None
            with Image.open(file, formats=FORMATS) as image:
                return image.size
    except Exception:
        return None


def read_content(picture: str | bytes) -> bytes:
    """The bytes of a file, which must be an ordinary one: a pipe would never end."""
    if isinstance(picture, bytes):
        content = picture
    else:
        try:
            path = Path(picture)
            size = ordinary_size(path)
            if size is None:
                raise Unreadable("is not a file")
            if size > MAX_BYTES:
                raise Unreadable(f"has {size / 1e9:,.1f} GB, too much for a picture")
            content = path.read_bytes() if size else b""
        except (FileNotFoundError, ValueError):  # ValueError: no file can have such a name
            raise Unreadable(GONE) from None
        except PermissionError:
            raise Unreadable("may not be read: no permission") from None
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror or error}") from None
    if not content:
        raise Unreadable("is empty")
    return content


def _opened(content: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings(action="ignore"):
            return Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise Unreadable("is not a picture") from None
    except Image.DecompressionBombError:
        raise Unreadable("has too many pixels to be decoded safely") from None
    except Exception as error:
        raise Unreadable("is cut short" if _is_cut(error) else f"is not a picture: {error}") from None


def _read(content: bytes, side: int, resizing: Resizing | None = None) -> Image.Image:
    with _opened(content) as image:
        try:
            if resizing is None or image.width * image.height > MAX_PIXELS:  # libraries decode all of it
                image.draft(None, (2 * side, 2 * side))  # a large JPEG is decoded at a fraction of its size
            if image.width * image.height > MAX_PIXELS:
                raise Unreadable(f"has {image.width} x {image.height} pixels, too many to be decoded safely")
            silent = libtiff_silent() if image.format == "TIFF" else nullcontext()
            with warnings.catch_warnings(action="ignore"), silent:
                return upright_square(image, side, resizing)
        except Unreadable:
            raise
        except MemoryError:
            raise Unreadable(NO_MEMORY) from None
        # A decoder may raise almost anything on damaged input; none of it may end a run.
        except Exception as error:
            raise Unreadable("is cut short" if _is_cut(error) else f"is damaged: {error}") from None


@contextmanager
def libtiff_silent() -> Iterator[None]:
    """Keep what libtiff prints about a picture from standard error: the picture's name is not in it."""
    with _SILENCE:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            kept = os.dup(2)
            os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _is_cut(error: Exception) -> bool:
    return "truncated" in str(error).lower() or isinstance(error, EOFError)


def check_skipped(num: int, total: int, max_skipped: float, reasons: Counter[str], *, first: bool = False) -> None:
    """Raise if more pictures cannot be read than the settings allow; `first`: there are more than these."""
    if num > max_skipped * total or num == total:
        kinds = Counter(reason.partition(":")[0] for reason in reasons.elements())
        why = ", ".join(f"{count:,} {reason!r}" for reason, count in kinds.most_common(3))
        if num <= max_skipped * total:
            raise BadInput(f"none of the {total:,} pictures can be read ({why}); 'msvq doctor' lists them")
        raise BadInput(
            f"{num:,} of {'the first ' if first else ''}{total:,} pictures cannot be read ({why}), more than "
            f"data.max_skipped = {max_skipped:g} allows; 'msvq doctor' lists them, "
            f"--set data.max_skipped=... allows more"
        )
