"""The commands in the documentation: where they stand, what they need, and whether they would be understood."""

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from msvq.cli import UsageError, app
from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.core.schema import assign, parse_assignment
from msvq.core.user_code import is_user_code
from msvq.evaluate.protocols import PROTOCOLS
from msvq.reproduce.reproduce import plan_sweep

ROOT = Path(__file__).parents[2]
PROGRAMS = ("msvq", "make", "python", "torchrun")
NEEDS = re.compile(r"<!-- needs: (.+?) -->")
# A comment behind a command that says how long it takes is a mark as well.
HOW_LONG = re.compile(r"\bsome [\w ]*(?:minutes|hours)\b")
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\w*)")


@dataclass(frozen=True)
class Command:
    """A command of a page, without its comment."""

    text: str
    page: str
    line: int
    needs: str = ""  # what stands in the way of running it in a test; none: it is run

    @property
    def words(self) -> list[str]:
        words = shlex.split(self.text)
        return [words[0].removeprefix(".venv/bin/"), *words[1:]]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """Lines of code of a page."""

    lines: tuple[str, ...]
    line: int  # of the first
    language: str
    needs: str


def blocks(text: str) -> Iterator[Block]:
    """Fenced and indented code, with the mark that stands before it."""
    lines, at, needs = text.splitlines(), 0, ""
    while at < len(lines):
        fence, start = FENCE.match(lines[at]), at
        if fence:
            at += 1
            while at < len(lines) and not lines[at].strip().startswith(fence[1]):
                at += 1
            yield Block(tuple(lines[start + 1 : at]), start + 2, fence[2], needs)
            at, needs = at + 1, ""
        elif lines[at].startswith("    ") and (start == 0 or not lines[start - 1].strip()):
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield Block(tuple(line[4:] for line in lines[start:at]), start + 1, "", needs)
            needs = ""
        else:
            mark = NEEDS.search(lines[at])
            if mark or lines[at].strip():
                needs = mark[1] if mark else ""
            at += 1


def commands_in(text: str, page: str) -> list[Command]:
    """The commands in a page's blocks."""
    return [command for block in blocks(text) for command in commands_of(block, page)]


def commands_of(block: Block, page: str) -> Iterator[Command]:
    """The commands of a block; a line that ends with a backslash goes on."""
    joined, start = "", block.line
    for number, line in enumerate(block.lines, block.line):
        start = number if not joined else start
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        written, _, comment = " ".join(joined.removeprefix("$ ").split()).partition(" #")
        joined = ""
        program = written.split(" ")[0].removeprefix(".venv/bin/")
        if program in PROGRAMS and block.language in ("", "bash", "sh", "console", "shell"):
            yield Command(written.strip(), page, start, block.needs or _told(written, comment))


def _told(written: str, comment: str) -> str:
    if "--download" in written.split() or " -m pip install " in written:
        return "a download"
    return comment.strip() if HOW_LONG.search(comment) else ""


def mentioned_in(text: str, page: str) -> list[Command]:
    """Commands in backticks within sentences; they may leave out what is needed to run."""
    plain = re.sub(r"(?ms)^ {0,3}```.*?^ {0,3}```", lambda block: "\n" * block[0].count("\n"), text)
    return [
        Command(
            " ".join("1" if word == "N" else word for word in found[1].split()),
            page,
            plain[: found.start()].count("\n") + 1,
        )
        for found in re.finditer(r"`(msvq [a-z]+[^`]*)`", plain)
    ]


class Parsed(Exception):
    """What the command line understood."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        super().__init__(name)
        self.name, self.values = name, values


def _parser() -> typer.Typer:
    """The command line itself, with every command replaced by one that tells what it was given."""
    parser = typer.Typer(add_completion=False)
    for command in app.registered_commands:
        assert command.callback is not None
        parser.command(command.name)(_telling(command.callback))
    return parser


def _telling(function: Any) -> Any:
    @functools.wraps(function)
    def tell(**values: Any) -> None:
        raise Parsed(function.__name__, values)

    return tell


def parse(words: list[str]) -> Parsed:
    """What `msvq WORDS` means to the real options; UsageError if nothing."""
    try:
        _parser()([word for word in words if word != "--debug"], prog_name="msvq", standalone_mode=False)
    except Parsed as parsed:
        return parsed
    return Parsed("", {})  # --help, --version


def problem(command: Command, *, whole: bool = True) -> str:
    """Why a command would not be understood, or nothing. `whole`: it is complete, and its names are real ones."""
    try:
        program, *words = command.words
        if program == "make":
            return "" if re.search(rf"^{re.escape(words[0])}:", _makefile(), re.MULTILINE) else f"no target {words[0]}"
        if program == "python":
            return _script_problem(words)
        if program == "torchrun":
            words = _behind_torchrun(words)
        _check(parse(words), whole=whole)
    except (BadInput, UsageError, ValueError) as error:
        said = error.format_message() if isinstance(error, UsageError) else str(error)
        left_out = said.startswith("Missing ") or "requires an argument" in said
        return "" if left_out and not whole else said
    return ""


def _makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def _behind_torchrun(words: list[str]) -> list[str]:
    """The words of msvq, once torchrun's own parser has taken what is in front of them."""
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words)
    if not given.module or given.training_script != "msvq":
        raise ValueError("torchrun starts msvq with -m msvq")
    return list(given.training_script_args)


def _script_problem(words: list[str]) -> str:
    if words[0] == "-m":
        return ""  # pip and the like; packages of ours have commands
    script = ROOT / words[0]
    if not script.is_file():
        return f"there is no {words[0]}"
    known = {node.value for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Constant)}
    unknown = [word for word in words[1:] if word.startswith("--") and word not in known]
    return f"{words[0]} has no {', '.join(unknown)}" if unknown else ""


def _looked_up(backbone: str | None) -> str | None:
    """What can be looked up here: code of the reader's own and the hub cannot, nor timm where it is not."""
    known = backbone or ""
    unknown = is_user_code(known) or known.startswith("hf:") or (known.startswith("timm:") and not find_spec("timm"))
    return None if unknown else backbone


def _check(parsed: Parsed, *, whole: bool) -> None:
    """Recipe, method, backbone, settings, protocol and table: each is looked up as the command would."""
    values, overrides = parsed.values, parsed.values.get("settings") or []
    if not whole:
        return
    if parsed.name in ("pretrain", "plan", "bench"):
        going_on = values.get("resume") and not values.get("recipe")  # its settings are the run's
        own = str(values.get("method") or "").partition(".py:")
        method = f"{ROOT / (own[0] + '.py')}:{own[2]}" if own[1] else values.get("method")
        resolve(
            recipe=values.get("recipe"),
            data=None if going_on else values.get("data"),
            method=method,
            backbone=_looked_up(values.get("backbone")),
            init=_looked_up(values.get("init")),
            overrides=overrides,
            epochs=values.get("epochs"),
            budget=values.get("budget"),
            precision=values.get("precision"),
        )
    elif parsed.name == "evaluate":
        if values["protocol"] not in PROTOCOLS:
            raise BadInput(f"unknown protocol {values['protocol']!r}")
        kind = PROTOCOLS[values["protocol"]].settings
        settings = kind().model_dump(mode="json")
        for text in overrides:
            assign(settings, *parse_assignment(text))
        kind.model_validate(settings)
    elif parsed.name == "reproduce" and values["name"] is not None:
        datasets, methods = (values[key].split(",") if values[key] else None for key in ("datasets", "methods"))
        plan_sweep(values["name"], scale=values["scale"], datasets=datasets, methods=methods, seeds=values["seeds"])
