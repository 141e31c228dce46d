"""Since which commit of a backend's repository a bug exists, by `git bisect`.

The user's working tree is never touched: commits are checked out in a work tree of their own, in a temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oracle.errors import UsageError
from triage.bisect import Progress, Question, Row
from triage.interpreters import Ran, Result, run_script

_BUILD_S = 3600.0
_TERMS = {
    True: ("good", "bad"),
    False: ("broken", "fixed"),
}  # the words for old and new commits: a bug came in, or went away
_FIRST = re.compile(r"^([0-9a-f]{40,64}) is the first (?:bad|fixed) commit$", re.MULTILINE)
_HASH = re.compile(r"^[0-9a-f]{40,64}$", re.MULTILINE)
_SHORT = 10  # characters of a hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """The commits of a repository between two revisions, and how they are built."""

    repo: Path
    good: str
    bad: str = "HEAD"
    build: str = ""  # a shell command, run in the work tree before each commit is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFindings:
    """The commits that were tried, in that order, and the one that changed the answer."""

    rows: tuple[Row, ...]
    is_introduced: bool | None = None  # a bug came in; False: it went away; None: both ends say the same
    first: Row | None = None
    candidates: tuple[str, ...] = ()  # if `first` is not known: the commits that it may be, some of which cannot be run

    @property
    def conclusion(self) -> str:
        """The answer in one line."""
        word = "bad" if self.is_introduced else "fixed"
        if self.first is not None:
            return f"first {word}: {self.first.name} {self.first.title}"
        if self.candidates:
            return f"first {word}: one of {', '.join(self.candidates)}; some of them cannot be run"
        is_bug = self.rows[0].ran.result is Result.BUG
        return f"the bug is in {'both' if is_bug else 'neither'} of {self.rows[0].name} and {self.rows[1].name}"

    @property
    def exit_code(self) -> int:
        """1 if the newer revision has the bug, else 0."""
        return int(self.rows[1].ran.result is Result.BUG)


def bisect_commits(
    question: Question,
    commits: Commits,
    *,
    python: str,
    timeout_s: float,
    runs: int = 1,
    progress: Progress = lambda stage: None,
) -> CommitFindings:
    """Finds the commit with which the bug came in, or went away if `commits.good` has it and `commits.bad` does not.

    Raises UsageError if there is no such repository or revision, if one of the two cannot be run, and for what git refuses.
    """
    root = top_of(commits.repo)
    old, new = (_revision(root, name) for name in (commits.good, commits.bad))
    folders = [str(Path(folder).resolve()) for folder in question.folders]
    inside = [os.path.relpath(folder, root) for folder in folders if Path(folder).is_relative_to(root)]
    with _work_tree(root, new) as tree:

        def tried(commit: str) -> Row:
            title = _git(tree, "log", "-1", "--format=%s", commit).strip()
            progress(f"{commit[:_SHORT]} {title}")
            paths = [str((tree / place).resolve()) for place in (*inside, ".", "src")] + folders
            ran = _built(tree, commits.build) or run_script(
                python, question.script, folders=paths, timeout_s=timeout_s, runs=runs
            )
            if ran.result.is_answer and question.script.module and not Path(ran.origin).resolve().is_relative_to(tree):
                what = f"{question.script.module} is not in this commit; Python finds {ran.origin or 'none'}"
                ran = replace(ran, result=Result.CANNOT_RUN, what=what)
            _git(tree, "reset", "--hard", "--quiet")  # a build may have changed files of the commit
            return Row(name=commit[:_SHORT], title=title, ran=ran, interpreter=python)

        ends = []
        for commit, name in ((old, commits.good), (new, commits.bad)):
            _git(tree, "checkout", "--quiet", "--detach", commit)
            ends.append(tried(commit))
            if not ends[-1].ran.result.is_answer:
                raise UsageError(
                    seen=f"{name} ({ends[-1].name}): {ends[-1].ran.result.value}: {ends[-1].ran.what}",
                    expected="two revisions that run the program", do="name others with --good and --bad",
                )  # fmt: skip
        if ends[0].ran.result is ends[1].ran.result:
            return CommitFindings(rows=tuple(ends))
        return _searched(tree, old, new, ends, tried)


def _searched(tree: Path, old: str, new: str, ends: Sequence[Row], tried: Callable[[str], Row]) -> CommitFindings:
    is_introduced = ends[1].ran.result is Result.BUG
    old_term, new_term = _TERMS[is_introduced]
    rows = [*ends]
    said = _git(tree, "bisect", "start", f"--term-old={old_term}", f"--term-new={new_term}", new, old)
    while not (_FIRST.search(said) or _HASH.search(said)):
        commit = _git(tree, "rev-parse", "HEAD").strip()
        rows.append(tried(commit))
        result = rows[-1].ran.result
        word = "skip" if not result.is_answer else new_term if result is ends[1].ran.result else old_term
        said = _git(tree, "bisect", word, is_end=True)
    if found := _FIRST.search(said):
        first = next((row for row in rows if row.name == found[1][:_SHORT]), None) or tried(found[1])
        return CommitFindings(rows=tuple(rows), is_introduced=is_introduced, first=first)
    candidates = tuple(commit[:_SHORT] for commit in _HASH.findall(said))
    return CommitFindings(rows=tuple(rows), is_introduced=is_introduced, candidates=candidates)


def _built(tree: Path, command: str) -> Ran | None:
    """Builds a commit. Returns None if it is built, else why not."""
    if not command:
        return None
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, shell=True, cwd=tree, env=variables, capture_output=True, text=True, timeout=_BUILD_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ran(result=Result.CANNOT_RUN, what=f"not built: no end within {_BUILD_S:.0f} s")
    if done.returncode == 0:
        return None
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    return Ran(result=Result.CANNOT_RUN, what=f"not built: {lines[-1].strip()}")


# ---------------------------------------------------------------------------------------------------------------------- git


def top_of(folder: Path) -> Path:
    """The top folder of a repository. Raises UsageError if the folder is in none."""
    try:
        return Path(_git(folder, "rev-parse", "--show-toplevel").strip()).resolve()
    except (UsageError, NotADirectoryError, FileNotFoundError) as error:
        raise UsageError(
            seen=f"--repo {folder}: no git repository", expected="the checkout of your backend", do="check the path"
        ) from error


def _revision(root: Path, name: str) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except UsageError as error:
        raise UsageError(
            seen=f"no commit {name!r} in {root}", expected="a branch, a tag or a hash", do="`git log` lists commits"
        ) from error


@contextlib.contextmanager
def _work_tree(root: Path, commit: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="torch-oracle-bisect-")).resolve()
    tree = folder / "tree"
    try:
        _git(root, "worktree", "add", "--detach", "--quiet", str(tree), commit)
        yield tree
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(UsageError):  # `add` may have failed
            _git(root, "worktree", "remove", "--force", str(tree))


def _git(folder: Path, *arguments: str, is_end: bool = False) -> str:
    """The output of git. Raises UsageError if it fails; `is_end`: not for exit codes that a search may end with."""
    kept = {name: text for name, text in os.environ.items() if name not in _LOCATIONS}
    command = ["git", "-c", "core.hooksPath=/dev/null", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**kept, "LC_ALL": "C"}, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0 and not (is_end and done.returncode == 2):
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise UsageError(
            seen=f"git {' '.join(arguments[:2])}: {' '.join(lines)}", expected="a repository that git can search",
            do="correct --repo, --good or --bad",
        )  # fmt: skip
    return done.stdout


_LOCATIONS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
