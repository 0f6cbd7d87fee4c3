"""Draw the diagrams: `python docs/draw_diagrams.py` writes docs/images/msvq.svg and docs/images/flow.svg."""

from html import escape
from pathlib import Path

INK, SOFT, PAPER = "#1d2230", "#667085", "#fbfaf7"
STUDENT, TEACHER1, TEACHER2, LABEL = "#b5471f", "#1b6b6f", "#6b2d5c", "#8a6d1f"


def box(x: float, y: float, w: float, h: float, text: str, colour: str, *, note: str = "") -> str:
    """A rounded box with one or two lines of text."""
    middle, line = x + w / 2, y + h / 2 + (5 if not note else -3)
    parts = [
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" fill="#fff" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{middle}" y="{line}" text-anchor="middle" fill="{colour}" font-weight="600">{escape(text)}</text>',
    ]
    if note:
        parts.append(
            f'<text x="{middle}" y="{line + 18}" text-anchor="middle" fill="{SOFT}" font-size="12">'
            f"{escape(note)}</text>"
        )
    return "".join(parts)


def arrow(points: list[tuple[float, float]], colour: str = INK, *, dashed: bool = False) -> str:
    """A line through points with an arrow head at the last."""
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = ' stroke-dasharray="6 5"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash} marker-end="url(#tip)"/>'


def words(x: float, y: float, text: str, colour: str = SOFT, *, anchor: str = "start") -> str:
    """A small note."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}" font-size="12.5">{escape(text)}</text>'


LABEL_FOR_ALL = "One step of MSVQ: a student, two momentum teachers, two queues, three soft labels"


def diagram() -> str:
    """One step, left to right: views, networks, embeddings against queues, loss."""
    rows = {1: 70, 2: 190, 3: 270, 4: 390}
    parts = [box(20, 205, 90, 50, "picture", INK)]
    for number, y in rows.items():
        kind, colour = ("strong", STUDENT) if number == 1 else ("weak", TEACHER2 if number == 4 else TEACHER1)
        parts.append(arrow([(110, 230), (132, 230), (132, y), (158, y)], SOFT))
        parts.append(box(160, y - 24, 92, 48, f"X{number}", colour, note=f"{kind} view"))
    parts += [
        box(300, 40, 150, 60, "student", STUDENT, note="learns by gradient"),
        box(300, 196, 150, 68, "teacher 1", TEACHER1, note="slow, momentum m1"),
        box(300, 360, 150, 60, "teacher 2", TEACHER2, note="fast, momentum m2"),
        arrow([(252, 70), (297, 70)]),
        arrow([(252, 190), (275, 190), (275, 216), (297, 216)]),
        arrow([(252, 270), (275, 270), (275, 244), (297, 244)]),
        arrow([(252, 390), (297, 390)]),
        arrow([(352, 100), (352, 193)], SOFT, dashed=True),
        arrow([(435, 100), (470, 100), (470, 345), (420, 345), (420, 357)], SOFT, dashed=True),
        words(358, 152, "follows (EMA)"),
    ]
    parts += [
        box(520, 168, 130, 62, "queue 1", TEACHER1, note="past Z2"),
        box(520, 360, 130, 60, "queue 2", TEACHER2, note="past Z4"),
        arrow([(450, 216), (517, 205)]),
        words(478, 196, "Z2, Z3", anchor="start"),
        arrow([(450, 390), (517, 390)]),
        words(482, 382, "Z4"),
        arrow([(450, 62), (712, 62)]),
        words(482, 54, "Z1 against both queues"),
        arrow([(585, 168), (585, 88), (712, 88)], SOFT),
        arrow([(650, 375), (676, 375), (676, 112), (712, 112)], SOFT),
    ]
    parts += [
        box(715, 40, 185, 88, "student's relations", STUDENT, note="P11, P12 (temperature 0.1)"),
        box(715, 165, 185, 40, "soft label P21", LABEL),
        box(715, 215, 185, 40, "soft label P31", LABEL),
        box(715, 370, 185, 40, "soft label P42", LABEL),
        arrow([(650, 188), (712, 185)]),
        arrow([(650, 212), (712, 235)]),
        arrow([(650, 395), (712, 395)]),
        words(807, 282, "which “negatives” are like me?", anchor="middle"),
        box(960, 190, 150, 76, "loss (Eq. 13)", INK, note="mean cross entropy"),
        arrow([(900, 84), (1035, 84), (1035, 187)], STUDENT),
        arrow([(900, 185), (930, 185), (930, 215), (957, 215)]),
        arrow([(900, 235), (957, 235)]),
        arrow([(900, 390), (1035, 390), (1035, 269)]),
    ]
    return picture(parts, 1130, 450, LABEL_FOR_ALL)


FLOW = "How pictures become an encoder: folders of the source, and the run directory between them"


def flow() -> str:
    """From pictures to an encoder and what one does with it, by the folders of src/msvq."""
    parts = [
        box(20, 170, 150, 90, "pictures", INK, note="folder, list, array, hub"),
        box(220, 150, 170, 130, "data/", TEACHER1, note="source, pack, augment"),
        box(220, 30, 170, 70, "config/", LABEL, note="recipe + flags + --set"),
        box(220, 330, 170, 70, "model/, methods/", TEACHER2, note="parts, one file a method"),
        box(450, 130, 190, 170, "train/", STUDENT, note="pretrain.py, trainer.py"),
        box(450, 30, 190, 60, "evaluate/", TEACHER2, note="kNN and health meanwhile"),
        box(710, 130, 180, 170, "run directory", INK, note="runs/ reads it"),
        box(960, 30, 160, 60, "evaluate/", TEACHER2, note="frozen protocols"),
        box(960, 120, 160, 60, "report/", LABEL, note="the page"),
        box(960, 210, 160, 60, "search/", TEACHER1, note="embed, search, copies"),
        box(960, 300, 160, 60, "export/", STUDENT, note="for other libraries"),
        arrow([(170, 215), (217, 215)]),
        arrow([(390, 215), (447, 215)]),
        arrow([(390, 65), (420, 65), (420, 160), (447, 160)]),
        arrow([(390, 365), (420, 365), (420, 270), (447, 270)]),
        arrow([(545, 90), (545, 127)], SOFT),
        arrow([(640, 215), (707, 215)]),
        *(arrow([(890, 215), (925, 215), (925, y), (957, y)]) for y in (60, 150, 240, 330)),
        words(545, 258, "views, loss, update,", anchor="middle"),
        words(545, 276, "callbacks, checkpoint", anchor="middle"),
        words(800, 258, "config.yaml, metrics.jsonl,", anchor="middle"),
        words(800, 276, "checkpoints, encoder", anchor="middle"),
        words(305, 258, "one array of uint8", anchor="middle"),
        box(
            450, 330, 440, 70, "api.py, cli/, reproduce/", INK, note="what people call, and the paper's tables from it"
        ),
        arrow([(545, 330), (545, 303)], SOFT, dashed=True),
        arrow([(800, 330), (800, 303)], SOFT, dashed=True),
        words(
            20,
            425,
            "core/ is below all of it: errors, console, files, settings, processes, devices. preflight/ looks first.",
        ),
    ]
    return picture(parts, 1140, 445, FLOW)


def picture(parts: list[str], width: int, height: int, label: str) -> str:
    """The drawing as a file."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 font-family="system-ui, sans-serif" font-size="15" role="img" aria-label="{label}">
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>
<rect width="{width}" height="{height}" rx="14" fill="{PAPER}"/>
{chr(10).join(parts)}
</svg>
"""


if __name__ == "__main__":
    for name, drawn in (("msvq", diagram()), ("flow", flow())):
        Path(__file__).with_name("images").joinpath(f"{name}.svg").write_text(drawn, encoding="utf-8")
