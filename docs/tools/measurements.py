"""Figures and tables that documents quote, computed from results/data.

`docs/tools/figures.py` puts them where a document has their key. A document quotes no other numbers than those in results/data.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "results" / "data" / "cpu-torch-2.13.0"
_NIGHT = 10**8  # cases of the night that docs/scale.md plans
_MUCH = 0.5  # share of Inductor's compile time above which models are counted
_SECTION = re.compile(r"<!-- begin (?P<suite>\w+) -->\n(?P<text>.*?)<!-- end (?P=suite) -->", re.DOTALL)
_PASSED = re.compile(r"\*\*(?P<passed>\d+) of (?P<denominator>\d+) ")
_TREE = re.compile(r"^Tests of PyTorch (?P<tree>[^,]+),", re.MULTILINE)
# The category of a test that does not pass.
_CATEGORY = re.compile(r"^\| [^|]+ \| \w+ \| (?P<category>[^|]+) \|", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceFigures:
    """The denominator of one suite or several (tests that depend on refimpl's entry points), and how many of these tests pass."""

    suite: str
    tree: str
    denominator: int
    passed: int
    categories: tuple[str, ...]  # the category of each test that does not pass

    @property
    def share(self) -> str:
        return f"{100 * self.passed / self.denominator:.1f}"

    def row(self) -> str:
        why = {word: self.categories.count(word) for word in sorted(set(self.categories))}
        words = ", ".join(f"{count} {word}" for word, count in sorted(why.items(), key=lambda item: -item[1]))
        return f"| {self.suite} | {self.tree} | {self.denominator} | {self.passed} | {self.share} | {words} |"


def rows_of(table: str) -> list[dict[str, str]]:
    """The rows of a CSV table of results/data."""
    with (DATA / table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def figures() -> dict[str, Callable[[], str]]:
    """Key -> the function that computes the figure."""
    return {
        "battery.wrong": lambda: str(_battery_sum("wrong_found", 1)),
        "battery.found": lambda: str(_battery_sum("wrong_found", 0)),
        "battery.right": lambda: str(_battery_sum("right_passed", 1)),
        "battery.passed": lambda: str(_battery_sum("right_passed", 0)),
        "mutants": lambda: str(len(rows_of("fuzz-mutants.csv"))),
        "mutants.found": lambda: str(sum(row["found"] == "True" for row in rows_of("fuzz-mutants.csv"))),
        "sweep.cases": lambda: _of_sweep("cases"),
        "codegen.entries": lambda: str(len(rows_of("codegen-opinfo-coverage.csv"))),
        "codegen.lowered": lambda: str(sum(row["lowered"] == "True" for row in rows_of("codegen-opinfo-coverage.csv"))),
        "codegen.kernels": lambda: str(sum(_numbers("codegen-registers.csv", "kernels"))),
        "codegen.spilling": lambda: str(sum(_numbers("codegen-registers.csv", "spilling"))),
        "codegen.spilled": lambda: str(max(_numbers("codegen-registers.csv", "spills"))),
        "compile.models": lambda: str(len(rows_of("codegen-compile-time.csv"))),
        "compile.cpp.source": lambda: f"{statistics.geometric_mean(_ratios('source_ratio')):.3f}",
        **_ratio_figures("compile.cpp", "total_ratio"),
        **_ratio_figures("compile.triton", "triton_ratio"),
        "documentation.examples": lambda: _of_documentation("examples"),
        "documentation.pages": lambda: _of_documentation("pages"),
        "documentation.right": lambda: _of_documentation("right"),
        "documentation.percent": lambda: _of_documentation("right_percent"),
        **_scale_figures(),
        "speed.processes": lambda: str(_most_processes()),
        "speed.false": lambda: _of_speed(0, "false_percent"),
        "speed.found_10": lambda: _of_speed(10, "found_percent"),
        "speed.found_5": lambda: _of_speed(5, "found_percent"),
        "transformers.listed": lambda: str(len(_transformers())),
        "transformers.eager": lambda: str(_done_with("eager")),
        "transformers.compared": lambda: str(_done_with("compare")),
        "transformers.bfloat16": lambda: str(_done_with("compare", dtype="bfloat16")),
        "transformers.bfloat16_agree": lambda: str(_done_with("agree", dtype="bfloat16")),
        "transformers.trained": lambda: str(_done_with("compare", mode="train")),
        "transformers.trained_agree": lambda: str(_done_with("agree", mode="train")),
        "decompositions.overloads": lambda: _of_decompositions("overloads with a rule"),
        "decompositions.calls": lambda: _of_decompositions("calls judged"),
        "decompositions.agree": lambda: _of_decompositions("calls that agree with eager"),
        "decompositions.declined": lambda: _of_decompositions("calls a rule declines, so that the op stays"),
        "decompositions.reasons": lambda: _of_decompositions("calls that differ for a reason given below"),
        "decompositions.differ": lambda: _of_decompositions("calls that differ from eager"),
    }


def _scale_figures() -> dict[str, Callable[[], str]]:
    """What docs/scale.md derives from the measured rates of the store: a night is 100 shards of a million cases."""

    def rate(what: str, read_by: str) -> int:
        (row,) = [row for row in rows_of("store-scale.csv") if (row["what"], row["read_by"]) == (what, read_by)]
        return int(row["rows_per_s"])

    def compare() -> int:
        return rate("compare", "row by row, error sums kept, of a million")

    def insert() -> int:
        return rate("insert", "queries in the database")

    return {
        "scale.insert": lambda: f"{insert():,}".replace(",", " "),
        "scale.insert.night": lambda: str(round(_NIGHT / insert() / 60)),
        "scale.compare": lambda: f"{compare():,}".replace(",", " "),
        "scale.compare.shard": lambda: str(round(2 * _NIGHT / 100 / compare())),
        "scale.compare.night": lambda: str(round(2 * _NIGHT / compare() / 60)),
        "scale.compare.eight": lambda: str(round(2 * _NIGHT / compare() / 60 / 8)),
    }


def _of_documentation(column: str) -> str:
    return next(row[column] for row in rows_of("documentation.csv") if row["area"] == "all")


def _most_processes() -> int:
    return max(int(row["processes"]) for row in rows_of("speed-verdicts.csv"))


def _of_speed(slower_percent: int, column: str) -> str:
    """A number of the verdicts on all programs, made with history and with the most processes."""
    wanted = ("all", str(_most_processes()), "True", str(slower_percent))
    keys = ("programs", "processes", "history", "slower_percent")
    (row,) = [row for row in rows_of("speed-verdicts.csv") if tuple(row[key] for key in keys) == wanted]
    return f"{float(row[column]):.1f}"


def _transformers(mode: str = "eval", dtype: str = "float32") -> list[dict[str, str]]:
    return [row for row in rows_of("transformers.csv") if (row["mode"], row["dtype"]) == (mode, dtype)]


def _done_with(step: str, mode: str = "eval", dtype: str = "float32") -> int:
    """How many architectures of transformers have done this step of the funnel."""
    steps = ["build", "eager", "capture", "compile", "run", "compare", "agree", ""]
    return sum(steps.index(row["stops at"]) > steps.index(step) for row in _transformers(mode, dtype))


_FUNNEL = {
    "listed": "was tried",
    "build": "a shrunk configuration gives a model",
    "eager": "the model runs in eager on inputs that were derived",
    "capture": "`torch.compile` captures a graph of it",
    "compile": "the backend compiles",
    "run": "the compiled model returns",
    "compare": "its results were compared with those of eager",
    "agree": "they agree, or differ as a known issue does",
}


def _funnel_table() -> str:
    """A row for each step from a listed architecture to agreement: how many have done it, by mode and dtype."""
    modes = (("eval", "float32"), ("train", "float32"), ("eval", "bfloat16"))
    lines = [
        f"| step | what it is | {' | '.join(f'{mode}, {dtype}' for mode, dtype in modes)} |",
        "| --- | --- |" + " ---: |" * len(modes),
    ]
    for step, text in _FUNNEL.items():
        counts = [len(_transformers(*mode)) if step == "listed" else _done_with(step, *mode) for mode in modes]
        lines.append(f"| {step} | {text} | {' | '.join(map(str, counts))} |")
    return "\n" + "\n".join(lines) + "\n"


def tables() -> dict[str, Callable[[], str]]:
    """Key -> the function that makes the table."""
    return {
        "judge.witnesses": _witness_table,
        "speed.verdicts": _speed_table,
        "report.scale": _report_table,
        "pytest.suite": _pytest_table,
        "transformers.funnel": _funnel_table,
        "judge.campaigns": _campaign_table,
        "judge.costs": _costs_table,
        "judge.wrong": lambda: _battery_table("wrong_found"),
        "judge.right": lambda: _battery_table("right_passed"),
        "judge.dial": lambda: _dial_table("scaled"),
        "conformance.tracing": lambda: _conformance_table(
            ("proxy_tensor", "aotdispatch", "mem_efficient_fusion", "functionalization")
        ),
        "conformance.capture": lambda: _conformance_table(_suites("dynamo_"), total="all"),
        "newer.conformance": _newer_table,
        "conformance.export": lambda: _conformance_table(
            [suite for suite in _suites("export_") if suite != "export_nonstrict"], total="all"
        ),
    }


def _speed_table() -> str:
    """False and found verdicts on speed, by kind of program, slowdown and number of processes, with history; then without."""
    rows = rows_of("speed-verdicts.csv")
    lines = [
        "| programs | processes | history | slower by | unchanged | false | `old` false | slowed | found | `old` found |",
        "| --- |" + " ---: |" * 9,
    ]
    most = max(row["processes"] for row in rows)
    shown = [row for row in rows if row["processes"] == most or row["programs"] == "all"]
    for row in sorted(shown, key=lambda row: (row["history"] != "True", row["programs"] == "all")):
        slowed = (
            (row["slowed"], row["found_percent"], row["old_found_percent"]) if row["slowed"] != "0" else ("", "", "")
        )
        cells = [
            row["programs"], row["processes"], "yes" if row["history"] == "True" else "no", f"{row['slower_percent']} %",
            row["untouched"], _in_percent(row["false_percent"]), _in_percent(row["old_false_percent"]),
            slowed[0], *map(_in_percent, slowed[1:]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def _in_percent(number: str) -> str:
    return f"{float(number):.1f} %" if number else ""


def _costs_table() -> str:
    """A row for each check of a large model, before and after it was made cheaper."""
    lines = ["| model | parameters | mode | subject | CPU time | times the runs | memory |"]
    lines.append("| --- | ---: | --- | --- | ---: | ---: | ---: |")
    before = {_of_model(row): row for row in rows_of("large-models-before.csv")}
    for row in rows_of("large-models.csv"):
        was = before.get(_of_model(row))
        cells = [
            f"{row[key]}{unit}" + (f" (was {was[key]})" if was else "")
            for key, unit in (("cpu_s", " s"), ("ratio", ""), ("memory_ratio", ""))
        ]
        mode = f"{row['mode']}, {row['dtype']}"
        lines.append(f"| {row['model']} | {row['millions']} M | {mode} | `{row['subject']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_model(row: dict[str, str]) -> tuple[str, ...]:
    return row["model"], row["millions"], row["mode"], row["subject"]


def _report_table() -> str:
    """A row for each size of a run: the file, and what its reader waits for."""
    lines = ["| cases | file | written in | opens in | search | case page |", "|" + " ---: |" * 6]
    for row in rows_of("report-scale.csv"):
        failing = ", all failing" if row["all_fail"] == "True" else ""
        carried = f", {_thousands(row['carried'])} of them in lists" if row["carried"] != row["rows"] else ""
        times = f"{row['interactive_ms']} ms | {row['search_ms']} ms | {row['case_ms']} ms"
        lines.append(
            f"| {_thousands(row['rows'])}{failing}{carried} | {row['file_mb']} MB | {row['build_s']} s | {times} |"
        )
    return "\n".join(lines)


def _pytest_table() -> str:
    """A row for each run of a package's tests: without the plugin, then on each compiler."""
    lines = [
        "| compiler | tests that pass | fail | calls judged | left out | agree | differ | not compared | time |",
        "| --- |" + " ---: |" * 8,
    ]
    for row in rows_of("pytest-suite.csv"):
        counts = [row["calls"], row["calls_left_out"], row["agree"], row["differ"], row["not_compared"]]
        cells = [row["subject"] or "none", row["passed"], row["failed"], *(counts if row["subject"] else [""] * 5)]
        lines.append(f"| {' | '.join(cells)} | {float(row['wall_s']):.0f} s |")
    return "\n" + "\n".join(lines) + "\n"


def _thousands(number: str) -> str:
    return f"{int(number):,}".replace(",", " ")


def _witness_table() -> str:
    """A column for each subject, a row for each witness: verdicts that it decides, elements in brackets."""
    rows = rows_of("judge-witnesses.csv")
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    at = {(row["subject"], row["witness"]): (int(row["verdicts"]), int(row["elements"])) for row in rows}
    names = ("all", "findings", "pass_due_to_skip", "bits", "close", "fp64", "noise", "loud noise", "other kernels")
    names += tuple(sorted({row["witness"] for row in rows} - set(names)))
    lines = [f"| | {' | '.join(f'`{subject}`' for subject in subjects)} |", "| --- |" + " ---: |" * len(subjects)]
    for name in names:
        cells = []
        for subject in subjects:
            verdicts, elements = at.get((subject, name), (0, 0))
            cells.append(f"{verdicts} ({elements})" if elements else str(verdicts))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def _campaign_table() -> str:
    """A row for each run of eager and of stock torch: findings, and how many of them are false alarms."""
    lines = [
        "| what ran | cases | findings not in the ledger | of these false alarms |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in rows_of("judge-campaigns.csv"):
        lines.append(f"| {row['what']} | {row['cases']} | {row['findings']} | {row['false_alarms']} |")
    return "\n" + "\n".join(lines) + "\n"


def _battery() -> dict[str, Any]:
    return json.loads((DATA / "judge-battery.json").read_text(encoding="utf-8"))


def _battery_sum(key: str, at: int) -> int:
    return sum(cell[at] for by_dtype in _battery()[key].values() for cell in by_dtype.values())


def _battery_table(key: str) -> str:
    """A row for each class of compilers, over all dtypes: right verdicts, of how many."""
    lines = ["| class | right | of |", "| --- | ---: | ---: |"]
    for name, by_dtype in sorted(_battery()[key].items()):
        right, of = (sum(cell[at] for cell in by_dtype.values()) for at in (0, 1))
        lines.append(f"| {name} | {right} | {of} |")
    return "\n" + "\n".join(lines) + "\n"


def _dial_table(name: str) -> str:
    """The smallest relative bias found, for the best and the worst program."""
    rows = [row for row in _battery()["dial"] if row["class"] == name]
    sizes = sorted({row["elements"] for row in rows})
    lines = [f"| dtype | {' | '.join(f'{size} elements' for size in sizes)} |", "| --- |" + " --- |" * len(sizes)]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        cells = []
        for size in sizes:
            found = [row["smallest"] for row in rows if (row["dtype"], row["elements"]) == (dtype, size)]
            numbers = [number for smallest in found for number in smallest.values()]
            known = [number for number in numbers if number is not None]
            worst = "none" if len(known) < len(numbers) else f"{max(known):g}"
            cells.append(f"{min(known):g} to {worst}" if known else "none")
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def _of_sweep(key: str) -> str:
    """A figure of the default sweep, from the file that `docs/tools/terminal.py` writes."""
    return str(json.loads((DATA / "default-sweep.json").read_text(encoding="utf-8"))[key])


def _numbers(table: str, column: str) -> list[int]:
    return [int(row[column]) for row in rows_of(table)]


def _ratios(column: str) -> list[float]:
    return [float(row[column]) for row in rows_of("codegen-compile-time.csv")]


def _ratio_figures(key: str, column: str) -> dict[str, Callable[[], str]]:
    """Figures of a ratio of compile times: its mean over models, the largest, and the number of models above `_MUCH`."""
    return {
        key: lambda: f"{statistics.geometric_mean(_ratios(column)):.2f}",
        f"{key}.greatest": lambda: f"{max(_ratios(column)):.2f}",
        f"{key}.much": lambda: str(sum(ratio > _MUCH for ratio in _ratios(column))),
    }


def _of_decompositions(name: str) -> str:
    """A number from the table of totals. Raises ValueError if there is none with this name."""
    text = (DATA / "decompositions.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(name)} \| (\d+)\b", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"decompositions.md has no line {name!r}")
    return found[1]


def conformance() -> dict[str, ConformanceFigures]:
    """The figures of every suite that has been run, by its name. Raises ValueError for a section without figures."""
    text = (DATA / "conformance.md").read_text(encoding="utf-8")
    return {
        section["suite"]: _section_figures(section["suite"], section["text"]) for section in _SECTION.finditer(text)
    }


def _section_figures(suite: str, text: str) -> ConformanceFigures:
    passed, tree = _PASSED.search(text), _TREE.search(text)
    categories = [row.strip() for row in _CATEGORY.findall(text.partition("### do not pass")[2])]
    if passed is None or tree is None or int(passed["denominator"]) - int(passed["passed"]) != len(categories):
        raise ValueError(f"section {suite} of conformance.md says no figures, or others than its table of tests")
    return ConformanceFigures(
        suite=f"`{suite}`",
        tree=tree["tree"],
        denominator=int(passed["denominator"]),
        passed=int(passed["passed"]),
        categories=tuple(word.lower() for word in categories),
    )


def _newer_table() -> str:
    lines = ["| suite | denominator | pass | pass % |", "|---|---:|---:|---:|"]
    for row in rows_of("conformance-newer.csv"):
        suite = row["suite"] if row["suite"] == "all" else f"`{row['suite']}`"
        lines.append(f"| {suite} | {row['denominator']} | {row['passed']} | {row['percent']} |")
    return "\n" + "\n".join(lines) + "\n"


def _suites(prefix: str) -> list[str]:
    return [suite for suite in conformance() if suite.startswith(prefix)]


def _conformance_table(suites: Sequence[str], *, total: str = "") -> str:
    found = [conformance()[suite] for suite in suites]
    lines = ["| suite | tree | denominator | pass | pass % | do not pass |", "|---|---|---:|---:|---:|---|"]
    lines += [figures.row() for figures in found]
    if total:
        pooled = ConformanceFigures(
            suite=total,
            tree=", ".join(dict.fromkeys(figures.tree for figures in found)),
            denominator=sum(figures.denominator for figures in found),
            passed=sum(figures.passed for figures in found),
            categories=tuple(word for figures in found for word in figures.categories),
        )
        lines.append(pooled.row())
    return "\n" + "\n".join(lines) + "\n"
