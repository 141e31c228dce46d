"""A digest of the code that Inductor generates while a program is compiled. Two runs with equal digests run the same code.

Comments, paths and names of cache files differ between runs of the same code, so they do not count.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MODULE = "torch._inductor.codecache"
_COMMENT = re.compile(r"^\s*(#(?!include)|//).*$", re.MULTILINE)
_PATH = re.compile(r"""(?:/[^/\s'"<>()]+)+/""")  # the folders of an absolute path
_KEY = re.compile(r"\bc[a-z2-7]{50,51}\b")  # names of Inductor's cache files


@dataclass(slots=True)
class GeneratedCode:
    """The files that Inductor loaded within a block of `watched_code`, in order."""

    paths: list[str] = field(default_factory=list)

    def digest(self) -> str | None:
        """A digest of their normalised text. None if there are none, or if one cannot be read."""
        if not self.paths:
            return None
        found = hashlib.blake2b(digest_size=12)
        for path in self.paths:
            try:
                text = Path(path).read_text(encoding="utf-8")
            except OSError:
                return None
            found.update(normalised(text).encode())
        return found.hexdigest()


def normalised(code: str) -> str:
    """The code without what differs between runs that generate the same."""
    return _KEY.sub("key", _PATH.sub("/", _COMMENT.sub("", code)))


@contextmanager
def watched_code() -> Iterator[GeneratedCode]:
    """Collects the files of code that Inductor loads, from its caches too. Collects nothing if Inductor is not imported."""
    found = GeneratedCode()
    cache: Any = getattr(sys.modules.get(_MODULE), "PyCodeCache", None)
    load = getattr(cache, "load_by_key_path", None)
    if load is None:
        yield found
        return

    def noted(key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        found.paths.append(path)
        return load(key, path, *args, **kwargs)

    own = cache.__dict__["load_by_key_path"]
    cache.load_by_key_path = noted
    try:
        yield found
    finally:
        cache.load_by_key_path = own
