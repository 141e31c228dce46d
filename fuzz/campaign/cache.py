"""The compiler's cache directory during a campaign: one of its own, kept from growing without end. Torch-free."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

_MOST_FILES = 20_000  # a few GB of kernels


class CompilerCache:
    """A temporary directory for TORCHINDUCTOR_CACHE_DIR. What is there after `keep` is kept; the rest goes when it is much.

    Kernels of random programs are never needed again, and no user's cache should be filled with them.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="torch-oracle-fuzz-", ignore_cleanup_errors=True)
        self.path = Path(self._directory.name)
        self._kept: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def keep(self) -> None:
        """What is there now is needed by every process: results of probes, headers."""
        self._kept = set(self._files())

    def prune(self) -> None:
        """Between two runs of the pool: nobody reads the files then."""
        files = [name for name in self._files() if name not in self._kept]
        if len(files) > _MOST_FILES:
            for name in files:
                with contextlib.suppress(OSError):  # somebody else cleaned up
                    os.unlink(name)

    def _files(self) -> list[str]:
        return [os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names]
