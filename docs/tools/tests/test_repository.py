"""Facts about the repository that no linter checks: sizes, commands, versions, and what must not be loaded."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

import contracts

ROOT = contracts.ROOT
PACKAGES = ("refimpl", "oracle", "fuzz", "triage", "suites", "results", "benchmarks")
MODULES = sorted(path for package in (*PACKAGES, "docs") for path in (ROOT / package).rglob("*.py"))
LINE_LIMIT = 800
RULE_TABLES: frozenset[str] = frozenset()  # paths of rule tables, which alone may be longer


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_modules_are_short_enough_to_read():
    sizes = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert {path: size for path, size in sizes.items() if size > LINE_LIMIT and path not in RULE_TABLES} == {}


def test_every_module_says_what_it_is():
    silent = [str(path.relative_to(ROOT)) for path in MODULES if "tests" not in path.parts and not docstring_of(path)]
    assert silent == []


def docstring_of(path) -> str | None:
    text = path.read_text(encoding="utf-8")
    end = text.find('"""', 3)
    return text[3:end] if text.startswith('"""') and end > 3 else ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("page", ["README.md", ".ci/run", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_make_targets_named_in_documents_exist(page: str):
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    code = re.findall(r"`make ([a-z-]+)", text_of(page)) + re.findall(
        r"^\s*(?:\$ )?make ([a-z-]+)", text_of(page), re.M
    )
    assert sorted(set(code) - targets) == []


def test_nodes_of_graphs_are_iterated_before_the_next_one_is_asked_for():
    """`graph.nodes`, and what `reversed` makes of it, are iterators in torch 2.13 alone: `next(iter(reversed(graph.nodes)))`."""
    found = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if "next(" not in text or ".nodes" not in text:
            continue  # most: to parse all modules takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "next":
                asked = re.sub(r"^reversed\((.*)\)$", r"\1", ast.unparse(node.args[0]))
                if re.search(r"\.nodes$", asked):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_torch_says_which_setuptools_it_needs():
    """Versions of torch that are supported exclude one another's: one line for all would keep some from being installed."""
    assert not re.search(r"^setuptools\b", text_of("requirements/constraints.txt"), re.M)


def test_the_makefile_and_the_constraints_name_the_same_torch():
    made = re.search(r"^TORCH\s*\?=\s*(\S+)", text_of("Makefile"), re.M)
    pinned = re.search(r"^torch==\S+", text_of("requirements/constraints.txt"), re.M)
    assert made
    assert pinned
    assert made[1] == pinned[0]


def test_every_constraint_holds_exactly_one_version_for_each_python():
    chosen: dict[tuple[str, str], list[str]] = {}
    for line in text_of("requirements/constraints.txt").splitlines():
        if line.startswith("#"):
            continue
        pin, _, marker = line.partition(";")
        name, _, version = pin.strip().partition("==")
        assert version, f"{line!r} is not an exact version"
        for python, holds in (("3.10", "<" in marker or not marker), ("3.11+", ">=" in marker or not marker)):
            if holds:
                chosen.setdefault((name.lower(), python), []).append(version)
    assert {key: versions for key, versions in chosen.items() if len(versions) > 1} == {}


def test_committed_files_name_no_package_index_and_no_home():
    names = ["Makefile", "pyproject.toml", "requirements/constraints.txt", ".ci/run", "README.md"]
    forbidden = re.compile(r"(--(extra-)?index-url|--find-links|https?://\S*(pypi|simple)|file://|/(home|root|opt)/)")
    assert {name: forbidden.findall(text_of(name)) for name in names if forbidden.search(text_of(name))} == {}


@pytest.mark.parametrize("module", ["results", "oracle.records", "oracle.verdict", "oracle.errors"])
def test_reading_results_does_not_load_torch(module: str):
    script = f"import sys, {module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("False\n", "")
