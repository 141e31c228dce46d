"""The version of a subject's own code, as a run records it: the installed distribution, the commit, and what was changed since.

Nothing is imported: the module of a backend is found as Python would find it. Where neither a distribution nor a commit tells one
version from the next, a digest of the files does. Torch's own stages have no version here, since a run records torch's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from oracle.subjects.registry import BUILT_IN
from oracle.subjects.spec import SubjectSpec

_REFIMPL = "oracle.subjects.refimpl:"  # the code of subjects whose own package is refimpl
_GIT_TIMEOUT_S = 20.0
_SHOWN = 12  # characters of a commit or a digest
_SUFFIXES = (".py", ".so", ".pyd")
_MOST_FILES = 5000  # of a package without a commit; of one with more, the first are looked at
_LARGE = 64 * 2**20  # bytes; of a larger file the size counts


def subject_versions(specs: Iterable[SubjectSpec]) -> dict[str, str]:
    """The versions of those subjects that have one, by their names: "my-backend 1.2, commit 0123456789ab"."""
    found = {spec.name: version_of(spec) for spec in specs}
    return {name: version for name, version in found.items() if version}


def recorded_versions(specs: Iterable[SubjectSpec]) -> dict[str, dict[str, str]]:
    """What the environment of a run says of its subjects: their versions, by name, if one has any."""
    versions = subject_versions(specs)
    return {"subjects": versions} if versions else {}


def version_of(spec: SubjectSpec) -> str:
    """The version of one subject's own code, in one line; "" for a stage of torch, and for code that is not found."""
    name = _package_of(spec)
    place = _place_of(name, search_path(spec)) if name else None
    if place is None:
        return ""
    distribution = _distribution_of(name)
    commit = _commit_of(place) or (distribution.commit if distribution else "")
    words = [distribution.text] if distribution else []
    words.append(commit or f"files {_digest_of_files(place)}")
    return ", ".join(words)


def search_path(spec: SubjectSpec) -> list[str]:
    """The current directory, then PYTHONPATH, as for `python -m`: a worker is started with another search path."""
    paths = [os.getcwd()]
    for value in (spec.env.get("PYTHONPATH"), os.environ.get("PYTHONPATH")):
        paths.extend(path for path in (value or "").split(os.pathsep) if path)
    return list(dict.fromkeys(os.path.abspath(path) for path in paths))


def _package_of(spec: SubjectSpec) -> str:
    """The top-level module of the subject's own code; "" for torch's."""
    if spec.path:
        return spec.path.partition(":")[0].partition(".")[0]
    is_refimpl = any(row.kind == spec.kind and row.code.startswith(_REFIMPL) for row in BUILT_IN.values())
    return "refimpl" if is_refimpl else ""


def _place_of(name: str, path: Sequence[str]) -> Path | None:
    """The file of a module, or the folder of a package."""
    try:
        found: ModuleSpec | None = PathFinder.find_spec(name, [*path, *sys.path]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a finder of an editable installation may raise; `__main__` has no spec
        return None
    if found is None:
        return None
    folders = list(found.submodule_search_locations or ())
    origin = folders[0] if folders else found.origin or ""
    return Path(origin).resolve() if os.path.exists(origin) else None


# ------------------------------------------------------------------------------------------------------ distributions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    text: str  # "my-backend 1.2"
    commit: str  # of an installation from a repository: "commit 0123456789ab"


def _distribution_of(module: str) -> _Installed | None:
    """The installed distribution that has the module."""
    names = metadata.packages_distributions().get(module, ())
    for name in sorted(set(names)):
        distribution = metadata.distribution(name)
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            commit = origin["vcs_info"]["commit_id"]
        except (ValueError, LookupError, TypeError):
            commit = ""
        text = f"commit {commit[:_SHOWN]}" if isinstance(commit, str) and commit else ""
        return _Installed(text=f"{name} {distribution.version}", commit=text)
    return None


# ------------------------------------------------------------------------------------------------------------ commits


def _commit_of(place: Path) -> str:
    """The commit of the checkout that the code is in, with a digest of what differs from it; "" if it is in none.

    An environment may be a folder in a checkout, so it counts only for files that git knows.
    """
    folder = place if place.is_dir() else place.parent
    known = place / "__init__.py" if (place / "__init__.py").exists() else place
    if _git(folder, "ls-files", "--error-unmatch", "--", str(known)) is None:
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:  # a repository without a commit
        return ""
    words = [f"commit {commit.decode(errors='replace')[:_SHOWN]}"]
    changes = (_git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv") or b"") + _untracked(folder, place)
    if changes:
        words.append(f"changes {_digest(changes)}")
    return ", ".join(words)


def _untracked(folder: Path, place: Path) -> bytes:
    """The code of the package that git does not know yet."""
    if place != folder:
        return b""
    listed = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", *(f"*{end}" for end in _SUFFIXES))
    files = sorted(folder / os.fsdecode(name) for name in (listed or b"").split(b"\0") if name)
    return b"".join(_content(file) for file in files[:_MOST_FILES])


def _git(folder: Path, *words: str) -> bytes | None:
    """What a command of git prints; None if it fails, as it does outside of a checkout, or without git."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env=environment,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


# -------------------------------------------------------------------------------------------------------------- files


def _digest_of_files(place: Path) -> str:
    files = [place] if place.is_file() else sorted(file for end in _SUFFIXES for file in place.rglob(f"*{end}"))
    digest = hashlib.sha256()
    for file in files[:_MOST_FILES]:
        digest.update(os.fsencode(file.relative_to(place)) + b"\0" + _content(file))
    return digest.hexdigest()[:_SHOWN]


def _content(file: Path) -> bytes:
    """A digest of a file's bytes; of a large file its size. An unreadable file counts as an empty one."""
    try:
        size = file.stat().st_size
        return hashlib.sha256(file.read_bytes()).digest() if size <= _LARGE else size.to_bytes(8, "little")
    except OSError:
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_SHOWN]
