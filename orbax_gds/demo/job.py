"""The training job as a child process that can be watched, frozen and killed."""

import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from typing import Any, Self

from orbax_gds.errors import OgdsError

LOG_TAIL_BYTES = 2000


class DemoFailed(OgdsError, RuntimeError):
    """The demo could not tell its story to the end; the message says where it stopped."""


@dataclasses.dataclass(kw_only=True)
class Life:
    """What one training job reported between its start and its end.

    Attributes:
        resumed_step: the step it resumed from, None if it began anew.
        resumed_sha256: digest of the state it resumed.
        losses: loss of each step it trained.
        sha256: digest of the state of each step, taken just before its save began.
        blocking_secs: seconds that each save kept the training waiting.
    """

    resumed_step: int | None = None
    resumed_sha256: str | None = None
    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    sha256: dict[int, str] = dataclasses.field(default_factory=dict)
    blocking_secs: list[float] = dataclasses.field(default_factory=list)

    def note(self, event: dict[str, Any]) -> None:
        """Take up one line that the job printed."""
        match event["event"]:
            case "resumed":
                self.resumed_step, self.resumed_sha256 = event["step"], event["sha256"]
            case "trained":
                self.losses[event["step"]] = event["loss"]
            case "saving":
                self.sha256[event["step"]] = event["sha256"]
            case "returned":
                self.blocking_secs.append(event["secs"])


class Job:
    """A child process that trains; a context manager that leaves no process behind.

    Args:
        directory: where the job keeps its steps; its log goes to `<directory>.log`.
        until: the step to stop after.
        every: steps between two saves.
    """

    def __init__(self, directory: pathlib.Path, *, until: int, every: int) -> None:
        self.life = Life()
        self._log = directory.with_name(directory.name + ".log")
        # -P: a source tree we stand in must not hide the installed package, which is compiled
        self._command = [sys.executable, "-P", "-m", "orbax_gds.demo.train", str(directory)]
        self._command += [f"--until={until}", f"--every={every}"]
        # the second job finds what the first one compiled: half a minute saved on two cores
        self._environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(directory.with_name("compiled")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self._rest = b""

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._stdout.close()

    def listen(self, timeout_secs: float | None = None) -> bool:
        """Take up what the job has reported, waiting at most `timeout_secs`; False at its end."""
        ready, _, _ = select.select([self._stdout], [], [], timeout_secs)
        if not ready:
            return True
        data = os.read(self._stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.life.note(json.loads(line))
        return bool(data)

    def freeze(self) -> None:
        """Stop the job where it is, and return when it stands (or has ended)."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen job run on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the job with SIGKILL, frozen or not: it runs no handler and flushes nothing."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Wait for the end of the job and return its exit code."""
        return self._process.wait()

    def failure(self, wanted: str) -> DemoFailed:
        """Return the error for a job that ended without doing what was `wanted` of it."""
        code = self.end()
        tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return DemoFailed(
            f"The training job ended with code {code}, but {wanted}. The end of its log:\n{tail}"
        )
