"""Write files atomically: a temporary file beside the target, then a rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from oracle.errors import UsageError

DB_VARIABLE: Final = "TORCH_ORACLE_DB"
"""The environment variable that names the results database where a command line does not."""


def write_atomically(path: Path, content: str | Iterable[str] | Callable[[Path], None]) -> None:
    """Write text or its pieces (UTF-8, "\\n" line ends), or let `content` write a temporary file at the path it gets.

    An existing file is replaced atomically, or not changed. Raises UsageError if the path cannot be written.
    """
    temporary: Path | None = None
    try:
        # A device or a pipe (/dev/stdout, /dev/null) cannot be replaced by a rename, so it is written directly.
        if path.exists() and not path.is_file() and not path.is_dir():
            _fill(path, content)
            return
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        _fill(temporary, content)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            seen=f"{path}: {error.strerror or error}",
            expected="a place that can be written, in a directory that exists",
            do="free space there, or name another file",
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _fill(path: Path, content: str | Iterable[str] | Callable[[Path], None]) -> None:
    if callable(content):
        content(path)
        return
    with path.open("w", encoding="utf-8", newline="\n", errors="backslashreplace") as file:
        file.writelines([content] if isinstance(content, str) else content)


def _umask() -> int:
    # mkstemp makes private files, but a report should have the permissions of any new file. The mask can only be read by setting
    # it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
