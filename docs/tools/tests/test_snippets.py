"""The code blocks of the documents run as printed, and every command line is one that today's command line takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oracle.cli
from fuzz import properties
from oracle.cli import build_app
from oracle.tests.forked_script import Ended, run_fresh_program, run_in_fork, run_program
from snippets import Block, blocks_of, is_output

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on Python 3.10 only

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if path.name not in ("known-bugs.md", "contracts.md", "correspondence.md") and "tools" not in path.parts
)
BLOCKS = {page: blocks_of((ROOT / page).read_text(encoding="utf-8")) for page in PAGES}
WITH_CODE = [page for page in PAGES if any(block.language in ("python", "console", "toml") for block in BLOCKS[page])]
DOCTESTS = ("docs/walkthrough.md", "docs/emulator.md", "docs/export.md", "docs/codegen.md")  # run by tests of their own
ENVIRONMENT = {"COLUMNS": "120", "NO_COLOR": "1"}
CHECKED = "2.13."  # the torch whose output the documents print


def arguments_of(text: str) -> list[list[str]]:
    """The arguments of each call of torch-oracle in a shell line."""
    words = shlex.split(text, comments=True)
    starts = [i for i, word in enumerate(words) if word.rpartition("/")[2] == "torch-oracle"]
    return [words[start + 1 : end] for start, end in zip(starts, [*starts, len(words)][1:], strict=True)]


def parse(arguments: list[str]) -> None:
    """Raise unless the command line takes these arguments; a command by itself only has to exist. Nothing is run."""
    app = build_app()
    context = app.make_context("torch-oracle", list(arguments), resilient_parsing=False)
    name, command, rest = app.resolve_command(context, list(arguments))
    if rest:
        assert command is not None
        command.make_context(name, rest, parent=context)


def commands_in_text(text: str) -> list[str]:
    """The command lines that stand in a sentence, as `torch-oracle list`; not those with a place to fill in."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(code.split()) for code in re.findall(r"`((?:\.venv/bin/)?torch-oracle [^`]+)`", without_blocks)]
    return [command for command in found if not command.endswith("...")]  # "...": the reader fills it in


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_is_one_that_the_tool_takes(page: str) -> None:
    lines = [(f"line {block.line}", command.text) for block in BLOCKS[page] for command in block.commands]
    lines += [("in a sentence", text) for text in commands_in_text((ROOT / page).read_text(encoding="utf-8"))]
    wrong = []
    for where, text in lines:
        if "torch-oracle" not in text:
            continue
        for arguments in arguments_of(text):
            try:
                if arguments and arguments[0] != "--help":
                    parse(arguments)
            except Exception as error:
                wrong.append(f"{where}: {text}: {type(error).__name__}: {error}")
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in DOCTESTS])
def test_the_code_of_a_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    for block in BLOCKS[page]:
        if block.marker:
            assert block.reason, f"{page}:{block.line}: the marker {block.marker!r} has no reason"
        if block.file:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    for block in BLOCKS[page]:
        where = f"{page}:{block.line}"
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            compile(block.text, where, "exec")
            if not block.marker and not shown_by_a_command(block, BLOCKS[page]):
                check_python(block, where, tmp_path)
        elif block.language == "console" and block.marker != "not run":
            check_console(block, where, tmp_path)


def shown_by_a_command(block: Block, blocks: list[Block]) -> bool:
    """Whether a console block of the page runs this file."""
    return bool(block.file) and any(f"python {block.file}" in c.text for other in blocks for c in other.commands)


def run(command: list[str], folder: Path) -> Ended:
    """Runs a command in the folder, with torch-oracle and the folder on the path."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def run_tests(path: Path) -> Ended:
    """Runs the tests of a file in a fork. Profiles of Hypothesis that it takes from `fuzz` have few examples there."""

    def work() -> int:
        properties.PROFILES.update(dict.fromkeys(properties.PROFILES, 20))
        sys.path.insert(0, str(path.parent))
        return int(pytest.main(["-q", "-p", "no:cacheprovider", path.name]))

    return run_in_fork(work, path.parent, ENVIRONMENT)


def run_tool(arguments: list[str], folder: Path) -> Ended:
    """Runs a command line of torch-oracle in a fork."""

    def work() -> int:
        sys.path.insert(0, str(folder))
        return oracle.cli.run(arguments)

    return run_in_fork(work, folder, ENVIRONMENT)


def check_python(block: Block, where: str, folder: Path) -> None:
    """Run a block as a script; one that holds tests is given to pytest.

    A fork of this process has torch and the compilers: a block takes most of its time to import them. Commands of pages, such
    as `python shift.py`, run in a fork that has torch alone.
    """
    path = folder / (block.file or f"block_{block.line}.py")
    path.write_text(block.text, encoding="utf-8")
    is_test = re.search(r"^def test_", block.text, re.MULTILINE) is not None
    done = run_tests(path) if is_test else run_program(path, folder)
    assert done.returncode == 0, f"{where}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def check_console(block: Block, where: str, folder: Path) -> None:
    for command in block.commands:
        program, *arguments = shlex.split(command.text)
        if program not in ("python", "torch-oracle") or not torch.__version__.startswith(CHECKED):
            continue
        if program == "torch-oracle":
            done = run_tool(arguments, folder)
        elif arguments[0].startswith("-"):
            done = run([sys.executable, *arguments], folder)
        else:  # a file of the page, with its arguments
            done = run_fresh_program(folder / arguments[0], folder, *arguments[1:], environment=ENVIRONMENT)
        assert done.returncode in (0, 1), f"{where}: {command.text}: {done.stderr[-2000:]}"
        assert is_output(done.stdout, command.output, numbers_vary=block.marker == "numbers vary"), (
            f"{where}: `{command.text}` prints\n{done.stdout}"
        )


def test_blocks_are_read_with_their_markers_files_and_commands() -> None:
    page = (
        "text\n```python\n# a.py\nprint(1)\n```\n<!-- numbers vary: vectors -->\n```console\n$ python a.py\n1\n"
        "$ torch-oracle \\\n  list\n```\n"
    )
    python, console = blocks_of(page)
    assert (python.file, python.line, python.marker) == ("a.py", 2, "")
    assert (console.marker, console.reason) == ("numbers vary", "vectors")
    assert [(c.text.split(), c.output) for c in console.commands] == [
        (["python", "a.py"], ("1",)),
        (["torch-oracle", "list"], ()),
    ]


@pytest.mark.parametrize(
    ("printed", "shown", "numbers_vary", "expected"),
    [
        ("a 1\nb\n", ("a 1", "b"), False, True),
        ("a 1\nb\n", ("a 1",), False, False),
        ("a 1\nb\nc\n", ("a 1", "...", "c"), False, True),
        ("a 1\n", ("a 2",), False, False),
        ("a 1\n", ("a 2.5e-3",), True, True),
        ("a 1\n", ("b 1",), True, False),
    ],
)
def test_output_is_compared_line_by_line(
    printed: str, shown: tuple[str, ...], numbers_vary: bool, expected: bool
) -> None:
    assert is_output(printed, shown, numbers_vary=numbers_vary) is expected


@pytest.mark.parametrize("arguments", [["sweep", "--subjekt", "x"], ["sweeep"], ["issues", "--severity"]])
def test_a_command_line_that_the_tool_does_not_take_is_seen(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"."):
        parse(arguments)
