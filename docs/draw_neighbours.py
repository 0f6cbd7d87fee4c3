"""Draw the README's picture: `python docs/draw_neighbours.py runs/demo` writes docs/images/neighbours.png."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CELL, GAP, EDGE = 64, 8, 3
GOOD, BAD, INK, PAPER = "#1f7a4d", "#d8d4c9", "#1d2230", "#fbfaf7"


def draw(run: Path) -> Image.Image:
    """A row per test picture: itself, its neighbours before training, and after."""
    saved = np.load(run / "eval" / "neighbours.npz", allow_pickle=False)
    rows, columns = saved["before"].shape[:2]
    step, head, block = CELL + GAP, 34, CELL + 40
    width = 2 * GAP + block + 2 * columns * step + 32
    sheet = Image.new("RGB", (width, head + rows * step + GAP), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(17)

    def place(x: int, y: int, picture: np.ndarray, edge: str | None) -> None:
        if edge:
            pen.rectangle((x - EDGE, y - EDGE, x + CELL + EDGE - 1, y + CELL + EDGE - 1), fill=edge)
        sheet.paste(Image.fromarray(picture).resize((CELL, CELL), Image.Resampling.NEAREST), (x, y))

    starts = {"before": GAP + block, "after": GAP + block + columns * step + 32}
    pen.text((GAP, 6), "picture", INK, font)
    for when, start in starts.items():
        pen.text((start, 6), f"nearest {when} training", INK, font)
    for row in range(rows):
        y = head + row * step
        place(GAP, y, saved["queries"][row], None)
        for when, start in starts.items():
            for column in range(columns):
                same = saved[f"{when}_labels"][row, column] == saved["query_labels"][row]
                place(start + column * step, y, saved[when][row, column], GOOD if same else BAD)
    return sheet


if __name__ == "__main__":
    draw(Path(sys.argv[1])).save(Path(__file__).with_name("images") / "neighbours.png", optimize=True)
