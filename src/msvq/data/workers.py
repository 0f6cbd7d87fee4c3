"""Processes that decode pictures: for packing, for streaming, for a look at what a folder holds.

They are plain child processes with a pipe, not `multiprocessing`: nothing of the caller's script is run again in them,
and nothing of its threads is copied. A picture that kills its process is skipped like any other bad picture.
"""

import hashlib
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from msvq.core.launch import child_environment, open_closed_streams
from msvq.data.decode import IMAGE_RECORD, KILLED, NO_MEMORY, Unreadable, decode, examine, read_content
from msvq.data.to_rgb import Resizing

if TYPE_CHECKING:
    from msvq.data.sources.base import EncodedSource

# decode: rows of pixels; pack: pixels into a file; check: read and forget; examine: rows of IMAGE_RECORD.
Task = Literal["decode", "pack", "check", "examine"]
Target = tuple[str, int]  # a file, and the row in it that the first picture gets
Chunk = Sequence[str | bytes]  # files, or their content
HASH_BYTES = 20


def chunked(
    images: "EncodedSource", order: Sequence[int] | NDArray[np.int64], num: int = 32
) -> Iterator[list[str | bytes]]:
    """The pictures in portions for a worker."""
    for start in range(0, len(order), num):
        yield [images[int(i)] for i in order[start : start + num]]


class Result(NamedTuple):
    """One row per picture that was asked for, why some are empty, and (pack, check) a hash of each file's content."""

    rows: NDArray[Any]
    reasons: dict[int, str]
    contents: bytes = b""


def perform(
    task: Task, pictures: Chunk, side: int, target: Target | None = None, resizing: Resizing | None = None
) -> Result:
    """Do a task on files or bytes, in this process."""
    reasons: dict[int, str] = {}
    hashes = [bytes(HASH_BYTES)] * len(pictures) if task in ("pack", "check") else []
    rows = _empty("decode" if task == "pack" else task, len(pictures), side)
    for index, picture in enumerate(pictures):
        try:
            content = read_content(picture)
            row = examine(content) if task == "examine" else decode(content, side, resizing)
            if task != "check":
                rows[index] = row
            if hashes:
                hashes[index] = hashlib.sha1(content, usedforsecurity=False).digest()
        except Unreadable as error:
            reasons[index] = str(error)
        except MemoryError:
            reasons[index] = NO_MEMORY
    if target is not None:
        _write(rows, *target)
        rows = _empty(task, len(pictures), side)
    return Result(rows, reasons, b"".join(hashes))


def _empty(task: Task, num: int, side: int) -> NDArray[Any]:
    if task == "examine":
        return np.zeros(num, IMAGE_RECORD)
    return np.zeros((num, side, side, 3) if task == "decode" else (num, 0), np.uint8)


def _write(rows: NDArray[np.uint8], path: str, first: int) -> None:
    with open(path, "r+b", buffering=0) as file:  # noqa: PTH123 - once per portion, in a hot loop
        file.seek(first * rows[0].nbytes)
        rest = memoryview(rows.data).cast("B")
        while rest:
            rest = rest[file.write(rest) :]


class Workers:
    """A pool that keeps the order of what it is asked. The processes start when first needed, and end with it."""

    def __init__(self, num: int | None = None) -> None:
        self.num = num or available_cores()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(self.num, thread_name_prefix="msvq-decode")
        self._started = _Started()
        self._stop = weakref.finalize(self, self._started.end, self._threads)

    def map(
        self,
        task: Task,
        chunks: Iterable[Chunk],
        *,
        side: int = 0,
        resizing: Resizing | None = None,
        ahead: int | None = None,
        file: str | None = None,
    ) -> Iterator[Result]:
        """The results of the chunks, in order; `ahead` chunks are worked on before they are asked for.

        `pack` writes the pixels of the n-th picture into row n of `file`, which exists.
        """
        row = 0
        waiting: deque[Future[Result]] = deque()
        try:
            for chunk in chunks:
                if len(waiting) >= (ahead or 2 * self.num):
                    yield waiting.popleft().result()
                target = None if file is None else (file, row)
                row += len(chunk)
                waiting.append(self._threads.submit(self._perform, task, chunk, side, target, resizing))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        self._stop()

    def _perform(
        self,
        task: Task,
        pictures: Chunk,
        side: int,
        target: Target | None,
        resizing: Resizing | None,
        chances: int = 2,
    ) -> Result:
        worker = self._living()
        result = worker.ask(task, list(pictures), side, target, resizing)
        if result is not None:
            self._idle.put(worker)
            return result
        self._started.remove(worker)
        if not chances:
            return Result(_empty(task, 1, side), {0: KILLED}, bytes(HASH_BYTES))
        # One of them killed the process, or something else did: ask for each alone, twice before it is blamed.
        parts = []
        for index, picture in enumerate(pictures):
            place = None if target is None else (target[0], target[1] + index)
            parts.append(self._perform(task, [picture], side, place, resizing, chances - 1))
        reasons = {index: part.reasons[0] for index, part in enumerate(parts) if part.reasons}
        return Result(np.concatenate([part.rows for part in parts]), reasons, b"".join(p.contents for p in parts))

    def _living(self) -> "_Worker":
        """An idle process, or a new one; those that were killed while idle are forgotten."""
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return self._started.add()
            if worker.process.poll() is None:
                return worker
            self._started.remove(worker)


def available_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """One child process, asked by one thread at a time."""

    def __init__(self) -> None:
        ignored = "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]"  # the parent decides
        code = f"import signal; {ignored}; from msvq.data.workers import serve; serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
        )

    def ask(self, *request: Any) -> Result | None:
        """What `perform` answers, or None if the process died. Raises what went wrong with the target."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump(request, self.process.stdin, protocol=5)
            self.process.stdin.flush()
            result: Result | OSError = pickle.load(self.process.stdout)  # of our own process
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # ValueError: closed meanwhile
            return None
        if isinstance(result, OSError):
            raise result
        return result

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still to be written to a dead process
                pipe.close()


class _Started:
    """The processes of a pool. After the end none is added: a thread that lost its own would start another."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self._lock, self._ended = threading.Lock(), False

    def add(self) -> _Worker:
        with self._lock:
            if self._ended:
                raise RuntimeError("the workers have been closed")
            self.workers.append(_Worker())
            return self.workers[-1]

    def remove(self, worker: _Worker) -> None:
        worker.end()
        with self._lock:
            if not self._ended:
                self.workers.remove(worker)

    def end(self, threads: ThreadPoolExecutor) -> None:
        threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._ended = True
        for worker in self.workers:
            worker.end()


def serve() -> None:
    """A worker process: answer until the pipe closes, which it does when the parent ends in whatever way."""
    Image.MAX_IMAGE_PIXELS = None  # `decode` has its own limit, after the size at which it decodes is known
    open_closed_streams()
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints does not mix with the answers
    logging.disable()  # a bad picture has its reason; what a library says about it besides is of no use
    while True:
        try:
            request = pickle.load(source)
            try:
                answer: Result | OSError = perform(*request)
            except OSError as error:  # of the target: a full disk
                answer = error
            pickle.dump(answer, answers, protocol=5)
            answers.flush()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            os._exit(0)  # at once: there is nobody left to write to
