"""The command line: one thin function per command; the work is done elsewhere."""

import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TextIO, cast, get_args

import typer
from rich.console import Console
from typer import Option
from typer.models import OptionInfo

from msvq.cli import evaluate, info, pictures, pretrain, reproduce, search
from msvq.cli.options import Stopped, app, reflowed
from msvq.core.console import TolerantStream, say
from msvq.core.errors import BadInput, first_line
from msvq.core.files import home, is_disk_full
from msvq.core.launch import is_main_process, open_closed_streams, refuse_planted_driver
from msvq.core.version import __version__

__all__ = ["app", "main"]

MODULES = (pretrain, evaluate, search, pictures, reproduce, info)  # each registers its commands
# The help lists commands by task, in the order in which a person needs them.
TASKS = {
    "Look at the pictures first": ("doctor", "plan", "datasets"),
    "Train": ("demo", "pretrain", "bench"),
    "Judge": ("report", "evaluate", "analyze", "compare", "runs"),
    "Use": (
        *("search", "embed", "duplicates", "outliers", "select", "cluster", "classify", "mislabelled"),
        "export",
    ),
    "The paper": ("reproduce",),
    "Look up": ("methods", "settings", "pretrained"),
}
PANELS = {
    "Pictures": ("data", "data_root", "download"),
    "How long": ("budget", "epochs"),
    "What": ("recipe", "method", "backbone", "init", "settings"),
    "Where it runs": ("device", "precision", "compiled", "seed"),
}
LEAVE_FILES = ("demo", "pretrain", "compare", "reproduce")  # what they print is not what they are for
TASK_OF = {command: task for task, names in TASKS.items() for command in names}


def arrange_help() -> None:
    """Commands by task, options in groups; a flag is shown without a type."""
    order, panel_of = [*TASK_OF], {option: panel for panel, options in PANELS.items() for option in options}
    functions: list[Any] = [command.callback for command in app.registered_commands]
    for command, function in zip(app.registered_commands, functions, strict=True):
        command.help, command.rich_help_panel = reflowed(function.__doc__ or ""), TASK_OF[function.__name__]
        for name, annotation in function.__annotations__.items():
            for option in getattr(annotation, "__metadata__", ()):
                if isinstance(option, OptionInfo):
                    option.rich_help_panel = panel_of.get(name)
                    if bool in (annotation.__origin__, *get_args(annotation.__origin__)) and option.metavar is None:
                        option.metavar = ""
    app.registered_commands.sort(key=lambda command: order.index(getattr(command.callback, "__name__", "")))


arrange_help()

UsageError: Any = typer.BadParameter.__base__  # its home differs between the versions of typer


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Bad input is answered with one sentence and exit code 2."""
    open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    out, errors = TolerantStream(sys.stdout), TolerantStream(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, errors)):
        code = run_command(arguments)
        out.flush()
        if out.error is not None and not isinstance(out.error, BrokenPipeError):  # who reads no more knows it
            say(Console(stderr=True), f"msvq: standard output cannot be written: {out.error.strerror}", "red")
            if command_of(arguments) not in LEAVE_FILES:
                code = code or 2
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run a command, say in a sentence what was wrong, and return the exit code."""
    debug = "--debug" in arguments
    try:
        refuse_planted_driver()
        code = app([a for a in arguments if a != "--debug"], prog_name="msvq", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (Stopped, KeyboardInterrupt, typer.Abort) as error:
        told = f": {error}" if isinstance(error, Stopped) else ""
        if is_main_process():
            say(Console(stderr=True), f"msvq: interrupted{told}")
        return 128 + (error.signal_number if isinstance(error, Stopped) else signal.SIGINT)
    except (BadInput, UsageError, OSError, MemoryError, ImportError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not lacks_memory(error):  # a mistake of ours
            raise
        if debug:
            traceback.print_exc()
        sentence = error.format_message() if isinstance(error, UsageError) else str(error)
        if type(error).__name__ == "NoSuchOption":
            sentence = _setting_for(error) or sentence
        elif "unexpected extra argument" in sentence and _takes_data(error):
            sentence = f"{sentence.rstrip('.')}; pictures are named with --data"
        if isinstance(error, RuntimeError):  # PyTorch's, on whatever device
            sentence = (
                f"there is too little memory ({first_line(error, 120)}); use --device cpu if a GPU is full, "
                f"or lower train.batch_size or backbone.width"
            )
        elif lacks_memory(error):
            sentence = f"there is too little memory ({first_line(error, 120)}); does 'ulimit -v' keep some from it?"
        elif isinstance(error, ImportError):  # a mistake of ours, or of the installation
            raise
        if not sentence or (isinstance(error, UsageError) and not is_main_process()):  # said already
            return 2
        if isinstance(error, OSError) and is_disk_full(error):
            sentence = _full_disk(arguments)
        elif isinstance(error, OSError) and error.filename:
            sentence = f"{error.filename}: {error.strerror}; is the path right, and may you write there?"
            with suppress(BadInput):  # there is no home
                place = Path(str(error.filename))
                if place.is_relative_to(home()) or home().is_relative_to(place):
                    sentence += " MSVQ_HOME=DIR names another place for what is kept there"
        say(Console(stderr=True), f"msvq: {sentence}", "red")
        return 2


def lacks_memory(error: BaseException) -> bool:
    """Whether memory was all that lacked, be it for a library that was to be loaded."""
    if isinstance(error, RuntimeError):
        from msvq.core.runtime import is_out_of_memory  # loads PyTorch, which such an error comes from

        return is_out_of_memory(error)
    told = str(error).lower()
    lacking = "failed to map segment" in told or "cannot allocate memory" in told
    return isinstance(error, MemoryError) or (isinstance(error, OSError | ImportError) and lacking)


def command_of(arguments: list[str]) -> str:
    """The command's name."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _takes_data(error: Any) -> bool:
    """Whether the command that was given too many words has an option for pictures."""
    return error.ctx is not None and any("--data" in one.opts for one in error.ctx.command.params)


def _setting_for(error: Any) -> str:
    """What to say of an option that there is not, but a setting; nothing where an option is spelled much like it."""
    from msvq.config.resolve import nearest_setting

    meant = nearest_setting(error.option_name)
    if meant is None or get_close_matches(error.option_name, error.possibilities or (), cutoff=0.8):
        return ""
    return f"there is no option {error.option_name}; --set {meant}=... sets it"


def _full_disk(arguments: list[str]) -> str:
    if command_of(arguments) == "pretrain":
        return "the disk is full; free some space: what was saved is kept, and --resume goes on from there"
    return "the disk is full; free some space, and give the command again"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"msvq {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    version: Annotated[
        bool, Option("--version", help="Show the version and leave.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error, on any command.")] = False,
) -> None:
    """Options of every command."""
