"""What other systems lack is asked for behind a guard, and what then happens instead is tried here."""

import ast
import os
import sys
from pathlib import Path

import pytest
import torch

import msvq
from msvq.core.runtime import keep_freed_memory
from msvq.data.workers import available_cores
from msvq.preflight import machine
from msvq.search.index import _reserved

SOURCES = Path(msvq.__file__).parent
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios"}
NAMES = {
    *("os.fork", "os.forkpty", "os.getuid", "os.geteuid", "os.killpg", "os.mkfifo", "os.posix_fallocate", "os.setsid"),
    *("os.sched_getaffinity", "os.sysconf", "os.uname", "os.statvfs", "os.O_DIRECTORY", "os.pread", "os.pwrite"),
    *("os.kill", "os.nice", "os.getloadavg", "os.O_NOFOLLOW", "signal.setitimer", "start_new_session", "preexec_fn"),
    *("signal.SIGKILL", "signal.SIGHUP", "signal.SIGUSR1", "signal.SIGCHLD", "signal.alarm", "signal.pause"),
}
# Each behind a guard; the tests below go the other way. Windows takes `start_new_session`, and ignores it.
GUARDED = {
    ("data/workers.py", "os.sched_getaffinity"),
    ("preflight/machine.py", "os.sysconf"),
    ("reproduce/sweep.py", "start_new_session"),
    ("preflight/machine.py", "resource"),
    ("core/files.py", "os.posix_fallocate"),
}


def posix_only(tree: ast.AST) -> set[str]:
    """What a module uses that Windows does not have."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.add(node.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found |= {f"{node.value.id}.{node.attr}"} & NAMES
        elif isinstance(node, ast.keyword):
            found |= {str(node.arg)} & NAMES
    return found


def test_what_windows_lacks_is_used_behind_a_guard() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        names = posix_only(ast.parse(path.read_text(encoding="utf-8")))
        found |= {(path.relative_to(SOURCES).as_posix(), name) for name in names}
    assert found == GUARDED


def test_memory_is_unknown_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_read_bytes", lambda path, key: None)
    monkeypatch.setattr(machine, "group_limit", lambda: None)
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delattr(os, "sysconf", raising=False)
    cpu = torch.device("cpu")
    assert machine.peak_memory(cpu) is None
    assert machine.available_memory(cpu) is None
    assert machine.held_memory(cpu) == 0


def test_an_index_is_reserved_and_cores_are_counted_by_other_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    _reserved(tmp_path / "index", 1000, 10)
    assert (tmp_path / "index").stat().st_size == 1000
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert available_cores() == os.cpu_count()


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_the_allocator_is_left_alone_elsewhere(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: object) -> None:
        raise AssertionError("the C library was asked for")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("ctypes.CDLL", fails)
    keep_freed_memory()
