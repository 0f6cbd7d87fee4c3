"""How much do the commands over pictures find? Copies, odd ones and wrong labels are planted, found and counted.

    python benchmarks/planted.py PICTURES.npz --folder DIR/small --encoder pixels --encoder untrained \
        --encoder cifar10-msvq-narrow --encoder "ten minutes=runs/small" --out benchmarks/planted.json
    python benchmarks/planted.py PICTURES.npz --folder DIR/large --large --encoder pixels --out benchmarks/planted.json

PICTURES.npz holds `images` uint8 [N, H, W, 3] and `labels` [N]; its name stands for them in the JSON. The folder of
files is made once, the same every time, so that an encoder can be trained on it before: without --encoder nothing else
is done. --large takes a few of the pictures, blown up to photographs of 1,000 to 2,000 pixels. `untrained` is the
network of the encoder that comes with the package, with fresh weights. What the JSON says of other pictures and
encoders is kept.
"""

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

import msvq
from msvq.api import Encoder
from msvq.core.files import write_text
from msvq.runs.evaluate import UNTRAINED, load_beside

BUNDLED = "cifar10-msvq-narrow"
QUALITY = 92
SIZES = ((2000, 1500), (1500, 2000), (1600, 1200), (1200, 1800), (1800, 1200), (1024, 1024), (1408, 1056))  # large ones
ORIENTATION, UPRIGHT = 0x0112, {6: 90, 3: 180, 8: 270}  # a camera's note, and how the pixels are stored turned for it

Picture = Image.Image


class Amounts(NamedTuple):
    """How many pictures, and how many are planted among them."""

    classes: int | None  # None: all
    pictures: int | None  # of a class, beside the examples
    examples: int  # of a class, in a folder of their own
    copies: int  # of each kind
    odd: int  # of each kind
    wrong: int  # labels


SMALL = Amounts(classes=None, pictures=None, examples=10, copies=10, odd=4, wrong=100)
LARGE = Amounts(classes=6, pictures=15, examples=10, copies=4, odd=2, wrong=8)


class Copy(NamedTuple):
    """A way to copy a picture, and what `msvq duplicates` shall call it; "": it promises nothing."""

    kind: str
    change: Callable[[Picture, Generator], Picture]
    quality: int = QUALITY


def crop(image: Picture, share: float, generator: Generator) -> Picture:
    """A part of so much of the side, anywhere."""
    width, height = round(share * image.width), round(share * image.height)
    left, top = generator.integers(image.width - width + 1), generator.integers(image.height - height + 1)
    return image.crop((int(left), int(top), int(left) + width, int(top) + height))


EQUAL = "equal files"
RESIZED = "saved again or resized"
COPIES = {
    EQUAL: Copy("exact", lambda image, _: image),
    "twice the side": Copy(RESIZED, lambda image, _: image.resize((2 * image.width, 2 * image.height))),
    "half the side": Copy(RESIZED, lambda image, _: image.resize((image.width // 2, image.height // 2))),
    "saved again (JPEG, quality 40)": Copy(RESIZED, lambda image, _: image, 40),
    "turned by a quarter": Copy("turned", lambda image, _: image.transpose(Image.Transpose.ROTATE_90)),
    "turned by a half": Copy("turned", lambda image, _: image.transpose(Image.Transpose.ROTATE_180)),
    "mirrored": Copy("mirrored", lambda image, _: ImageOps.mirror(image)),
    "cropped to 90 % of the side": Copy("cropped", lambda image, generator: crop(image, 0.9, generator)),
    "cropped to 80 %": Copy("cropped", lambda image, generator: crop(image, 0.8, generator)),
    "cropped to 70 %": Copy("cropped", lambda image, generator: crop(image, 0.7, generator)),
    "cropped to 50 %": Copy("", lambda image, generator: crop(image, 0.5, generator)),
    "cropped to 80 % and mirrored": Copy("", lambda image, generator: ImageOps.mirror(crop(image, 0.8, generator))),
    "turned by 10 degrees": Copy("", lambda image, _: image.rotate(10, Image.Resampling.BICUBIC)),
    "without colours": Copy("", lambda image, _: ImageOps.grayscale(image).convert("RGB")),
    "brighter by a third": Copy("", lambda image, _: ImageEnhance.Brightness(image).enhance(4 / 3)),
    "in a white frame": Copy("", lambda image, _: ImageOps.expand(image, image.width // 10, "white")),
}


def blank(image: Picture, generator: Generator) -> Picture:
    return Image.new("RGB", image.size, tuple(generator.integers(256, size=3).tolist()))


def noise(image: Picture, generator: Generator) -> Picture:
    return Image.fromarray(generator.integers(256, size=(image.height, image.width, 3), dtype=np.uint8))


def stripes(image: Picture, generator: Generator) -> Picture:
    width = max(2, image.width // int(generator.integers(6, 20)))
    bands = np.indices((image.height, image.width)).sum(0) // width % 2 * 255
    return Image.fromarray(np.stack([bands, 255 - bands, bands], 2).astype(np.uint8))


def letter(image: Picture, generator: Generator) -> Picture:
    """Lines of words, black on white."""
    page, unit = Image.new("RGB", image.size, "#fdfdfb"), max(1, image.width // 40)
    draw = ImageDraw.Draw(page)
    for top in range(2 * unit, image.height - 2 * unit, 2 * unit):
        left = 3 * unit
        while left < image.width - 5 * unit:
            right = left + int(generator.integers(unit, 4 * unit + 1))
            draw.rectangle((left, top, right, top + unit // 2), fill="#222222")
            left = right + unit
    return page


def blue(image: Picture, _: Generator) -> Picture:
    """As under water."""
    return Image.merge(
        "RGB",
        [
            band.point([round(share * v) for v in range(256)])
            for band, share in zip(image.split(), (0.1, 0.2, 1), strict=True)
        ],
    )


ODD: dict[str, Callable[[Picture, Generator], Picture]] = {
    "blank": blank,
    "noise": noise,
    "stripes": stripes,
    "a page of text": letter,
    "eight times as wide as high": lambda image, _: image.resize((2 * image.width, image.height // 4)),
    "tiny": lambda image, _: image.resize((16, 12)),
    "blue": blue,
}


class Planted(NamedTuple):
    """What is in a folder: names are relative to it, classes are what pictures show, whatever their label."""

    classes: dict[str, str]
    copies: dict[str, list[list[str]]]  # by kind: original and copy
    odd: dict[str, list[str]]  # by kind
    wrong: list[str]


def examples_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-examples")


def facts_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def open_planted(folder: Path) -> Planted | None:
    """What is in a folder that was made before."""
    facts = facts_of(folder)
    return Planted(**json.loads(facts.read_text(encoding="utf-8"))) if facts.is_file() else None


def enlarge(image: Picture, number: int) -> Picture:
    """A large photograph, with grain and texture that the small one has not."""
    generator = np.random.default_rng(number)
    width, height = SIZES[number % len(SIZES)]
    pixels = np.asarray(ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC), np.float32)
    grain = generator.standard_normal((height, width), np.float32) * 5
    for cell in (16, 64):
        coarse = Image.fromarray(generator.standard_normal((height // cell, width // cell), np.float32) * 6)
        grain += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray((pixels + grain[..., None]).clip(0, 255).astype(np.uint8))


def plant(folder: Path, images: NDArray[np.uint8], labels: NDArray[np.int64], amounts: Amounts, large: bool) -> Planted:
    """Fill a new folder with a folder per class, and another with examples; what was planted goes to a file beside."""
    generator = np.random.default_rng(0)
    known = np.unique(labels)
    known = known[np.linspace(0, len(known) - 1, amounts.classes or len(known)).astype(int)]
    found = Planted({}, {kind: [] for kind in COPIES}, {kind: [] for kind in ODD}, [])
    rows: dict[str, int] = {}
    for label in known.tolist():
        chosen = generator.permutation(np.flatnonzero(labels == label))
        for row in chosen[: amounts.examples].tolist():
            save(make(images, row, large), examples_of(folder) / f"class-{label:02}" / f"{row:05}.jpg")
        rest = chosen[amounts.examples :]
        for row in rest[: amounts.pictures or len(rest)].tolist():
            name = f"class-{label:02}/{row:05}.jpg"
            found.classes[name], rows[name] = f"class-{label:02}", row
    names = generator.permutation(sorted(rows)).tolist()
    classes = sorted(set(found.classes.values()))
    for name in names[: amounts.wrong]:
        label = generator.choice([other for other in classes if other != found.classes[name]])
        moved = f"{label}/{Path(name).name}"
        found.classes[moved], rows[moved] = found.classes.pop(name), rows.pop(name)
        found.wrong.append(moved)
    for number, (name, row) in enumerate(sorted(rows.items())):
        note = [*UPRIGHT][number // 3 % 3] if large and number % 3 == 0 else None
        save(make(images, row, large), folder / name, note=note)
    originals = iter(names[amounts.wrong :])
    for number, (kind, copy) in enumerate(COPIES.items()):
        for _ in range(amounts.copies):
            name = next(originals)
            target = f"{Path(name).parent}/{Path(name).stem}-{number:02}.jpg"
            if kind == EQUAL:
                shutil.copy(folder / name, folder / target)
            else:
                save(copy.change(make(images, rows[name], large), generator), folder / target, copy.quality)
            found.copies[kind].append([name, target])
    for number, (kind, change) in enumerate(ODD.items()):
        for turn in range(amounts.odd):
            target = f"{generator.choice(classes)}/odd-{number:02}-{turn:02}.jpg"
            save(change(make(images, int(generator.integers(len(images))), large), generator), folder / target)
            found.odd[kind].append(target)
    write_text(facts_of(folder), json.dumps(found._asdict(), indent=1) + "\n")
    return found


def make(images: NDArray[np.uint8], row: int, large: bool) -> Picture:
    image = Image.fromarray(images[row])
    return enlarge(image, row) if large else image


def save(image: Picture, path: Path, quality: int = QUALITY, note: int | None = None) -> None:
    """As JPEG; with a camera's note, the pixels are stored so that it puts them upright."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if note is not None:
        exif[ORIENTATION] = note
        image = image.rotate(UPRIGHT[note], expand=True)
    image.save(path, quality=quality, exif=exif)


def load(name: str) -> Encoder:
    """An encoder by its name, or the bundled one's network with fresh weights."""
    loaded = load_beside(UNTRAINED, msvq.load_encoder(BUNDLED)) if name == UNTRAINED else msvq.load_encoder(name)
    # Without its run: that may have been told to look at no labels.
    return Encoder(**{one.name: getattr(loaded, one.name) for one in fields(loaded)} | {"run": None})


def measure(encoder: Encoder, folder: Path, planted: Planted) -> dict[str, Any]:
    """What each command finds."""
    return {
        "duplicates": count_copies(encoder.duplicates(data=folder).records(), planted),
        "outliers": count_odd(encoder, folder, planted),
        "mislabelled": count_wrong(encoder.mislabelled(data=folder).records(), planted),
        "classify": count_right(encoder, folder, planted),
        "cluster": count_pure(encoder, folder, planted),
        "select": count_covered(encoder, folder, planted),
    }


def count_copies(rows: list[dict[str, Any]], planted: Planted) -> dict[str, Any]:
    """Copies in a group with their original, those of them with the right kind, and groups of other pictures.

    Odd ones are left out of groups: pages of text and small pictures of others are hard to tell from copies.
    """
    odd = {name for names in planted.odd.values() for name in names}
    group = {row["file"]: row["group"] for row in rows}
    listed = {frozenset((row["file"], row["copy_of"])): row["kind"] for row in rows if row["copy_of"]}
    together = {
        kind: [pair for pair in pairs if group.get(pair[0], -1) == group.get(pair[1])]
        for kind, pairs in planted.copies.items()
    }
    named = sum(listed.get(frozenset(pair)) == COPIES[kind].kind for kind, pairs in together.items() for pair in pairs)
    members: dict[int, set[str]] = {}
    for name in group.keys() - odd:
        members.setdefault(group[name], set()).add(name)
    known = [set(pair) for pairs in planted.copies.values() for pair in pairs]
    others = [sorted(names) for names in members.values() if len(names) > 1 and names not in known]
    for names in others:
        print("not planted:", *names)
    return {
        "found": {kind: len(pairs) for kind, pairs in together.items()},
        "with the right kind": named,
        "groups that were not planted": len(others),
    }


def count_odd(encoder: Encoder, folder: Path, planted: Planted) -> dict[str, Any]:
    """Odd ones among as many pictures as are odd."""
    num = sum(map(len, planted.odd.values()))
    first = {row["file"] for row in encoder.outliers(data=folder, num=num).records()}
    return {"found": {kind: len(first & set(names)) for kind, names in planted.odd.items()}}


def count_wrong(rows: list[dict[str, Any]], planted: Planted) -> dict[str, Any]:
    """Wrong labels among those listed, and among as many of them as are wrong."""
    wrong = set(planted.wrong)
    return {
        "listed": len(rows),
        "found": sum(row["file"] in wrong for row in rows),
        "with the right class": sum(
            row["looks_like"] == planted.classes[row["file"]] for row in rows if row["file"] in wrong
        ),
        "among the first": sum(row["file"] in wrong for row in rows[: len(wrong)]),
    }


def count_right(encoder: Encoder, folder: Path, planted: Planted) -> dict[str, Any]:
    """Percent of the pictures that get the class they show, all and the fifth that is surest."""
    found = encoder.classify(examples_of(folder), data=folder)
    right = [
        row["predicted"] == planted.classes[str(row["file"])]
        for row in found.records()
        if row["file"] in planted.classes
    ]
    return {
        "cross-validation": round(found.classifier.accuracy, 1),
        "right": percent(right),
        "right of the surest fifth": percent(right[len(right) - len(right) // 5 :]),  # the least sure come first
    }


def count_pure(encoder: Encoder, folder: Path, planted: Planted) -> dict[str, Any]:
    """Percent of the pictures that show what most of their group show, with a group per class."""
    rows = encoder.cluster(len(set(planted.classes.values())), data=folder).records()
    pairs = [(row["group"], planted.classes[str(row["file"])]) for row in rows if row["file"] in planted.classes]
    shuffled = np.random.default_rng(0).permutation([shown for _, shown in pairs]).tolist()
    return {
        "purity": purity(pairs),
        "purity by chance": purity(zip([group for group, _ in pairs], shuffled, strict=True)),
    }


def purity(pairs: Iterable[tuple[Any, str]]) -> float:
    groups: dict[Any, Counter[str]] = {}
    for group, shown in pairs:
        groups.setdefault(group, Counter())[shown] += 1
    return round(100 * sum(max(one.values()) for one in groups.values()) / sum(map(Counter.total, groups.values())), 1)


def count_covered(encoder: Encoder, folder: Path, planted: Planted) -> dict[str, Any]:
    """Classes among twice as many pictures as there are classes, and the odd ones, which show none."""
    odd = {name for names in planted.odd.values() for name in names}
    copies = (pair for pairs in planted.copies.values() for pair in pairs)
    shown = planted.classes | {copy: planted.classes[original] for original, copy in copies}
    chosen = {str(row["file"]) for row in encoder.select(2 * len(set(planted.classes.values())), data=folder).records()}
    return {
        "classes": len({shown[name] for name in chosen if name in shown}),
        "odd ones": len(chosen & odd),
    }


def percent(right: list[bool]) -> float:
    return round(100 * sum(right) / max(len(right), 1), 1)


def table(found: dict[str, Any]) -> str:
    """What was found in one set of pictures, a column per encoder, in Markdown."""
    encoders: dict[str, Any] = found["encoders"]
    classes, wrong, copies = found["classes"], found["wrong"], found["copies of a kind"]
    lines = [f"| {found['files']:,} files | {' | '.join(encoders)} |", "|---" * (1 + len(encoders)) + "|"]

    def head(title: str) -> None:
        lines.append(f"| **{title}** |" + " |" * len(encoders))

    def add(title: str, command: str, template: str) -> None:
        cells = [template.format_map(one[command]) for one in encoders.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")

    head(f"`duplicates`: copies, {copies} of each kind")
    for kind in (kind for kind, copy in COPIES.items() if copy.kind):
        add(kind, "duplicates", f"{{found[{kind}]}}")
    add("of these with the right kind", "duplicates", "{with the right kind}")
    add("groups that were not planted", "duplicates", "{groups that were not planted}")
    head(f"`duplicates`: kinds that it does not promise, {copies} each")
    for kind in (kind for kind, copy in COPIES.items() if not copy.kind):
        add(kind, "duplicates", f"{{found[{kind}]}}")
    head(f"`outliers`: odd ones, {found['odd']} of each kind, among the first {found['odd'] * len(ODD)}")
    for kind in ODD:
        add(kind, "outliers", f"{{found[{kind}]}}")
    head(f"`mislabelled`: {wrong} wrong labels")
    add("found among those listed", "mislabelled", "{found} among {listed}")
    add("of these with the right class", "mislabelled", "{with the right class}")
    by_chance = wrong * wrong / found["files"]
    add(f"found among the first {wrong} (by chance {by_chance:.1f})", "mislabelled", "{among the first}")
    head(f"`classify`: {classes} classes, {found['examples of a class']} examples of each")
    add(f"right (by chance {100 / classes:.1f} %)", "classify", "{right} %")
    add("right of the surest fifth", "classify", "{right of the surest fifth} %")
    add("what cross-validation said", "classify", "{cross-validation} %")
    head(f"`cluster --num {classes}`")
    add("show what most of their group show (by chance)", "cluster", "{purity} % ({purity by chance} %)")
    head(f"`select --num {2 * classes}`")
    by_chance = classes * (1 - (1 - 1 / classes) ** (2 * classes))
    add(f"classes among them (by chance {by_chance:.1f})", "select", "{classes}")
    add("odd ones among them", "select", "{odd ones}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="of the files, made if it is not there")
    parser.add_argument("--large", action="store_true", help="few and large photographs")
    parser.add_argument("--encoder", action="append", default=[], metavar="[TITLE=]NAME")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    amounts = LARGE if options.large else SMALL
    planted = open_planted(options.folder) or plant(options.folder, *read(options.pictures), amounts, options.large)
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    name = options.pictures.stem + (", large" if options.large else "")
    found = known.setdefault(name, {"encoders": {}})
    found |= describe(options.folder, planted, amounts)
    for title, _, encoder in (given.rpartition("=") for given in options.encoder):
        found["encoders"][title or encoder] = measure(load(encoder), options.folder, planted)
        write_text(options.out, json.dumps(known, indent=1) + "\n")
        print(table(found), flush=True)


def read(pictures: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    with np.load(pictures) as arrays:
        return arrays["images"], arrays["labels"]


def describe(folder: Path, planted: Planted, amounts: Amounts) -> dict[str, Any]:
    """How many there are of what."""
    return {
        "files": sum(path.is_file() for path in folder.rglob("*")),
        "classes": len(set(planted.classes.values())),
        "pictures": len(planted.classes),
        "examples of a class": amounts.examples,
        "copies of a kind": amounts.copies,
        "odd": amounts.odd,
        "wrong": amounts.wrong,
    }


if __name__ == "__main__":
    main()
