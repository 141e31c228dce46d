"""Virtual environments with one version of torch each, kept for later in the user's cache folder.

`~/.cache/torch-oracle/torch-2.12.0-py3.11/` has this Python and `pip install torch==2.12.0 numpy`. Which build of torch that is,
decide pip's own settings, and the words that the user adds for pip.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from oracle.errors import UsageError

_VERSION = re.compile(r"^\d+\.\d+(\.\d+)?([a-z0-9.+]*)$")
_READY = ".ready"  # written last, so that a half-made environment is not taken for a complete one
_INSTALL_S = 3600.0


class NoEnvironmentError(Exception):
    """An environment that could not be made. The message is the last line that pip or venv printed."""


def parse_versions(text: str) -> list[str]:
    """The versions of torch in a text such as "2.11.0,2.12.0", each once. Raises UsageError for text that is none."""
    versions = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for version in versions:
        if not is_version(version):
            raise UsageError(
                seen=f"--torch {version!r}", expected="versions separated by commas, such as 2.12.0,2.13.0",
                do="for a build of your own, name its interpreter: --python PATH",
            )  # fmt: skip
    return versions


def is_version(text: str) -> bool:
    """Whether a text is a version of torch, such as 2.12.0, and not the path of an interpreter."""
    return _VERSION.match(text) is not None


def cache_folder() -> Path:
    """The folder in which environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-oracle"


def environment_folder(version: str, pip: str = "") -> Path:
    """The folder of the environment with this torch. Other words for pip give another folder."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    build = f"-{hashlib.blake2b(pip.encode(), digest_size=3).hexdigest()}" if pip else ""
    return cache_folder() / f"torch-{version}-{python}{build}"


def is_ready(version: str, pip: str = "") -> bool:
    """Whether there is an environment with this torch already."""
    folder = environment_folder(version, pip)
    return (folder / _READY).is_file() and (folder / "bin" / "python").exists()


def interpreter_with(version: str, *, pip: str = "") -> Path:
    """The interpreter of an environment with this torch, made if there is none. `pip` are more words for `pip install`.

    Raises NoEnvironmentError if it cannot be made, and UsageError if `pip` is no shell text.
    """
    words = _words(pip)
    folder = environment_folder(version, pip)
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if is_ready(version, pip):
            return python
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _run([sys.executable, "-m", "venv", str(folder)])
            install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            _run([*install, *words, f"torch=={version}", "numpy"])
            (folder / _READY).write_text(f"torch=={version} {pip}\n", encoding="utf-8")
        finally:
            if not (folder / _READY).is_file():
                shutil.rmtree(folder, ignore_errors=True)
    return python


def _words(pip: str) -> list[str]:
    try:
        return shlex.split(pip)
    except ValueError as error:
        raise UsageError(
            seen=f"--pip {pip!r}: {error}", expected="options of pip install",
            do="write for example --pip '--index-url ADDRESS'",
        ) from error  # fmt: skip


def _run(command: Sequence[str]) -> None:
    variables = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, env=variables, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as late:
        raise NoEnvironmentError(f"no end within {_INSTALL_S:.0f} s") from late
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr.strip() or done.stdout.strip()).splitlines()]
        errors = [line for line in lines if line.startswith("ERROR") and "Impossible" not in line]
        raise NoEnvironmentError((errors or lines or [f"exit code {done.returncode}"])[-1])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Another process that makes the same environment is waited for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
