"""Fourteen nights of real runs, and what each command tells: `python -m benchmarks.measurements.real_nights [--csv FILE]`.

Each night is a sweep of the same operators by the compiler benchmarks.nightly, with `--rerun 2`. From night 9 on it is wrong for
`mul`. In nights 3, 6 and 11 one case of `tanh` fails once and not again. From night 12 on the runs are
from another machine: the processor's name in their environment is changed after the sweep, since there is only one machine here.

Each morning `compare` looks at the night before, and `gate` at a baseline: it accepts what fails in the first night, and with
`--update` what broke in night 9 after that was reported. `history` is asked for flaky cases and for the break, and in the end
`triage` for the week since night 7. Columns named `..._right` say whether a command reported what was planted, and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurements.frame import options_of, shown
from benchmarks.nightly import FOLDER
from oracle.cli import run
from oracle.errors import InternalError
from oracle.isolate import keep_starters
from results.store import Store

NIGHTS = 14
_BROKEN_NIGHT, _OTHER_MACHINE = 9, 12
_FLAKY_NIGHTS = (3, 6, 11)
_BROKEN, _FLAKY = "mul", "tanh"
_OTHER_PROCESSOR = "another processor"
_SWEEP = (
    *("sweep", "--subject", "benchmarks.nightly:nightly", "--suite", "opinfo", "--dtype", "float32"),
    *("--direction", "forward", "--max-samples", "2", "--rerun", "2", "--known", "none", "--json"),
)
_OPERATORS = (
    "add", "sub", "mul", "exp", "sin", "tanh", "sigmoid", "neg", "abs", "maximum", "clamp", "amax", "matmul",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """Counts of what was reported in the morning after a night. They are 0 for the first night, which has none before it."""

    night: int
    cases: int
    planted: int  # cases that fail in this night and did not in the one before
    compare_new: int
    compare_right: bool  # whether these are the planted ones
    compare_flaky: int  # of the new failures, those that did not fail each time
    compare_fixed: int
    compare_names_machine: bool
    gate_problems: int
    gate_right: bool
    history_flaky: int  # cases that the history calls flaky
    history_right: bool  # whether it names the night in which each broken case broke
    triage_new: int | None  # of the last night
    triage_flaky: int | None
    triage_right: bool | None


def command(*words: str, codes: Sequence[int] = (0, 1)) -> str:
    """What a command prints to stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(list(words))
    if code not in codes:
        raise InternalError(f"torch-oracle {' '.join(words)} ended with {code}")
    return out.getvalue()


def told(*words: str) -> Any:
    return json.loads(command(*words, "--json"))


def sweep(db: Path, folder: Path, night: int, operators: Sequence[str]) -> str:
    """Run a night. Returns the id of its run."""
    if night == _BROKEN_NIGHT:
        (folder / f"wrong-{_BROKEN}").touch()
    once = folder / f"once-{_FLAKY}"
    if night in _FLAKY_NIGHTS:
        once.touch()
    command(*_SWEEP, *(word for name in operators for word in ("--match", name)), "--db", str(db))
    if once.exists():
        raise InternalError(f"no case of {_FLAKY} took {once}")
    with Store.open(db, create=False) as store:
        info = store.run()
        if night >= _OTHER_MACHINE:
            environment = {**info.environment, "cpu_model": _OTHER_PROCESSOR}
            with store.transaction() as transaction:
                transaction.update_run(info.run_id, environment=environment, arguments=info.arguments)
    return info.run_id


def nights(folder: Path, count: int = NIGHTS, operators: Sequence[str] = _OPERATORS) -> Path:
    """Run them one after another. Returns the database."""
    db, planters = folder / "nights.db", folder / "planted"
    planters.mkdir()
    os.environ[FOLDER] = str(planters)
    with keep_starters(2, ignored=frozenset({"TORCHINDUCTOR_CACHE_DIR"})):
        for night in range(1, count + 1):
            sweep(db, planters, night, operators)
    return db


def mornings(db: Path) -> Iterator[Night]:
    """What is reported each morning, when later nights are not in the database yet."""
    with Store.open(db, create=False, read_only=True) as store:
        ids = [info.run_id for info in store.runs()]
    with tempfile.TemporaryDirectory() as folder:
        baseline = Path(folder) / "accepted.txt"
        baseline.touch()
        for night in range(1, len(ids) + 1):
            until = Path(folder) / f"until-{night}.db"
            shutil.copy(db, until)
            with closing(sqlite3.connect(until)) as connection, connection:
                for table in ("records", "cases", "runs"):
                    connection.execute(f"DELETE FROM {table} WHERE run > ?", (night,))
            yield morning(until, baseline, ids[:night])


def morning(db: Path, baseline: Path, ids: Sequence[str]) -> Night:
    """Ask each command about the last night."""
    night = len(ids)
    update = ("gate", "--db", str(db), "--baseline", str(baseline), "--update")
    if night == 1:
        command(*update, codes=(0,))
    gate = told("gate", "--db", str(db), "--baseline", str(baseline))
    if night == _BROKEN_NIGHT:
        command(*update, codes=(0,))
    with Store.open(db, create=False, read_only=True) as store:
        records = list(store.records())
    of_broken = {one.case_id for one in records if one.group == _BROKEN and one.verdict.compared.elements}
    flaky = {one.case_id for one in records if one.verdict.status.is_finding and one.verdict.is_flaky}
    planted = of_broken if night == _BROKEN_NIGHT else flaky if night in _FLAKY_NIGHTS else set[str]()
    changes: dict[str, Any] = {"cases": [], "environment": [], "totals": {"fixed": 0}}
    if night > 1:
        changes = told("compare", f"{db}#{ids[-2]}", f"{db}#{ids[-1]}")
    new = {change["case_id"]: change for change in changes["cases"] if change["kind"] == "new failure"}
    of_cases = told("history", f"opinfo/{_BROKEN}/*", "--db", str(db))
    breaks = [one["broke"] for one in of_cases if one["case_id"] in of_broken]
    expected = ids[_BROKEN_NIGHT - 1] if night >= _BROKEN_NIGHT else None
    week = triage(db, ids, of_broken) if night == NIGHTS else (None, None, None)
    return Night(
        night=night,
        cases=gate["planned"],
        planted=len(planted),
        compare_new=len(new),
        compare_right=set(new) == planted,
        compare_flaky=sum(change["is_flaky"] for change in new.values()),
        compare_fixed=changes["totals"]["fixed"],
        compare_names_machine=any(one["key"] == "cpu_model" for one in changes["environment"]),
        gate_problems=len(gate["problems"]),
        gate_right={problem["case_id"] for problem in gate["problems"]} == planted,
        history_flaky=len(told("history", "--db", str(db), "--flaky")),
        history_right=[one and one["first_bad"] for one in breaks] == [expected] * len(of_broken),
        triage_new=week[0],
        triage_flaky=week[1],
        triage_right=week[2],
    )


def triage(db: Path, ids: Sequence[str], broken: set[str]) -> tuple[int, int, bool]:
    """New failures and flaky cases that the week's page has, and whether the new ones are those that broke."""
    text = command("triage", "--db", str(db), "--base", f"{db}#{ids[6]}")
    sections = {part.split(" (")[0].strip(): part.splitlines() for part in text.split("### ")[1:]}
    new, flaky = (
        [line for line in sections.get(title, []) if "@" in line] for title in ("new failures", "flaky cases")
    )
    is_right = len(new) == len(broken) and all(any(_BROKEN in line for line in new) for _ in new)
    return len(new), len(flaky), is_right and not sections.keys() - {"new failures", "flaky cases"}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--match", action="append", default=[], help="these programs only")
    parser.add_argument("--db", type=Path, help="a database with such nights: none is run")
    parser.add_argument("--folder", type=Path, help="an empty folder in which the database stays, as nights.db")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        db = options.db or nights(options.folder or Path(temporary), options.nights, options.match or _OPERATORS)
        shown(mornings(db), options.csv)


if __name__ == "__main__":
    main()
