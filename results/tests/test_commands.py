"""The commands as a user types them: what is printed, with which exit code, and the errors for bad input."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from oracle.errors import UsageError
from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.verdict import Status
from results import commands
from results.export import from_json_lines
from results.store import Store
from results.tests import fabricate

ROOT = Path(__file__).parents[2]


def run(*words: str | Path, expect: int = 0) -> str:
    """Standard output of one command line, whose exit code must be as expected. UsageError passes through."""
    app = typer.Typer()
    for name in ("show", "compare", "gate", "export", "merge"):
        app.command(name)(getattr(commands, name))
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == expect, result.output
    return result.stdout


@pytest.fixture
def base(tmp_path: Path) -> Path:
    records = [
        fabricate.record(fabricate.case("add/float32/0"), speedup=2.0),
        fabricate.record(fabricate.case("sub/float32/0"), Status.FAIL_ACCURACY),
        fabricate.record(fabricate.case("mul/float32/0", subject="inductor[mode=max-autotune]"), Status.CRASH),
    ]
    return fabricate.database(tmp_path / "base.db", records)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    records = [
        fabricate.record(fabricate.case("add/float32/0"), speedup=1.0),
        fabricate.record(fabricate.case("sub/float32/0")),
    ]
    left = fabricate.case("mul/float32/0", subject="inductor[mode=max-autotune]")
    return fabricate.database(tmp_path / "head.db", records, run_id="run-2", unrecorded=[left])


# -------------------------------------------------------------------------------------------------------------- show


def test_show_of_a_run_without_cases_counts_none(tmp_path: Path):
    empty = fabricate.database(tmp_path / "empty.db", [])
    assert "\n0 cases: 0 pass, 0 new\n" in run("show", "--db", empty)
    assert json.loads(run("show", "--json", "--db", empty))["records"] == []


def test_commands_start_without_packages_that_few_of_them_need():
    """compare and gate are called most, and pandas alone takes longer to import than they take."""
    heavy = {"pandas", "pyarrow", "scipy.stats", "scipy.optimize"}
    program = f"import sys, results.commands; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_show_prints_environment_rates_failures_and_speed(base: Path):
    text = run("show", "--db", base)
    assert "run run-1 (complete, 3 of 3 cases" in text
    assert "torch 2.13.0+cpu" in text
    for title in ("3 cases: 1 pass, 2 new", "new findings: 2 in 2 cases", "failures (2)", "speed"):
        assert title in text
    assert "opinfo/sub/float32/0@inductor" in text
    assert "2x [1.96, 2.04]" in run("show", "--db", base, "--speed")


def test_show_of_an_interrupted_run_counts_the_case_that_was_not_run_and_does_not_call_it_a_failure(head: Path):
    text = run("show", "--db", head)
    assert "3 cases: 2 pass, 0 new, 1 not run" in text
    assert "not run: the run was stopped before" in text
    assert "new findings: none" in text
    assert "failures" not in text


@pytest.mark.parametrize("glob", ["opinfo/mul/float32/0@inductor[mode=max-autotune]", "opinfo/mul/*"])
def test_show_of_a_case_prints_source_and_repro(base: Path, glob: str):
    text = run("show", glob, "--db", base)
    assert text.startswith("opinfo/mul/float32/0@inductor[mode=max-autotune]\n")
    assert "def program(x):\n    return x + 1\n" in text
    assert "repro: torch-oracle sweep --suite opinfo" in text
    assert "opinfo/sub" not in text


def test_show_json_holds_the_records(base: Path):
    data = json.loads(run("show", "--db", base, "--json"))
    assert data["run"]["run_id"] == "run-1"
    lines = "\n".join(json.dumps(record) for record in data["records"])
    with Store.open(base, create=False) as store:
        assert from_json_lines(lines) == list(store.records())


def test_findings_that_were_run_again_say_how_often_they_differ(tmp_path: Path):
    reruns = {"now": ("pass", "fail_accuracy"), "always": ("fail_accuracy", "crash"), "once": ()}
    failed = {name: fabricate.record(fabricate.case(f"{name}/float32/0"), Status.FAIL_ACCURACY) for name in reruns}
    records = [replace(one, verdict=replace(one.verdict, reruns=reruns[name])) for name, one in failed.items()]
    db = fabricate.database(tmp_path / "reruns.db", records)
    shown = run("show", "--db", db)
    assert "flaky findings (1)" in shown
    assert "2 of 3 runs  pass, fail_accuracy" in shown
    assert "2 cases run again, each time in a fresh process: 1 differ each time" in shown
    again = run("show", "*always*", "--db", db)
    assert "differs in 3 of 3 runs; run again in a fresh process: fail_accuracy, crash" in again
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("")
    gate = json.loads(run("gate", "--db", db, "--baseline", baseline, "--json", expect=1))
    assert sorted(problem["message"].partition(":")[0] for problem in gate["problems"]) == [
        "fail_accuracy", "fail_accuracy, in 2 of 3 runs", "fail_accuracy, in 3 of 3 runs"
    ]  # fmt: skip


def test_show_lists_runs_and_shows_an_older_one(base: Path):
    with Store.open(base, create=False) as store:
        fabricate.write_run(store, [fabricate.record(fabricate.case("add/float32/0"))], run_id="run-2")
    listed = run("show", "--db", base, "--runs").splitlines()
    assert [line.split()[0] for line in listed if line.startswith("  run-")] == ["run-1", "run-2"]
    assert "failures (2)" in run("show", "--db", base, "--run", "run-1")
    assert "new findings: none" in run("show", "--db", base)


def test_findings_are_cut_unless_all_is_asked_for_and_all_leaves_nothing_out(tmp_path: Path):
    statuses = (Status.CRASH, Status.KNOWN, Status.XPASS, Status.PASS_DUE_TO_SKIP)
    records = [fabricate.record(fabricate.case(f"op{i}/f"), status) for i in range(40) for status in statuses[:1]]
    records += [fabricate.record(fabricate.case(f"other{i}/f"), status) for i in range(30) for status in statuses[1:2]]
    records += [fabricate.record(fabricate.case(f"third{i}/f"), statuses[2 + i % 2]) for i in range(50)]
    path = fabricate.database(tmp_path / "many.db", records)
    short, whole = run("show", "--db", path), run("show", "--db", path, "--all")
    assert "and 20 more with 20 cases" in short
    assert "failures" not in short
    assert len(short.splitlines()) < 70
    assert "show --all" not in whole
    for record in records:
        assert record.case_id in whole
        if record.verdict.status is not Status.XPASS:
            assert (f"{record.case_id} " in short) is (
                record.case_id in [f"opinfo/op{i}/f@inductor" for i in range(20)]
            )


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_command_prints_a_line_that_is_wider_than_the_terminal(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
):
    name = "nn.functional.an_operator_with_a_long_name/float32/forward/sample-0"
    subjects = ("aot_eager", "inductor[mode=max-autotune-no-cudagraphs]")
    cases = [fabricate.case(name, subject=subject) for subject in subjects]
    symptom = "call 0: output[0] is 1.5, but should be 2.5 (fp64 2.5): error 1, allowed 1e-5; 1 of 3 elements are wrong"
    path = fabricate.database(
        tmp_path / "a.db", [fabricate.record(c, Status.FAIL_GRAD, symptom=symptom) for c in cases]
    )
    good = fabricate.database(
        tmp_path / "b.db", [fabricate.record(case, speedup=2.0) for case in cases], run_id="run-2"
    )
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("# none\n")

    def terminal() -> Console:
        return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)

    consoles: list[Console] = []
    monkeypatch.setattr(commands, "Console", lambda: consoles.append(terminal()) or consoles[-1])
    run("show", "--db", path)
    run("show", "--db", path, "--all", "--speed")
    run("show", "--db", good, "--speed")
    run("compare", good, path, "--all", expect=1)
    run("gate", "--db", path, "--baseline", baseline, expect=1)
    ids = {f"opinfo/{name}@{subject}" for subject in subjects}
    for console in consoles:
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert any(case_id in text for case_id in ids) or console is consoles[2]
        for line in text.splitlines():
            assert len(line) <= width or line.strip() in {*ids, f"opinfo/{name}", subjects[1]}, line


def test_known_issues_are_one_line_with_their_severities_and_one_that_is_gone_is_named(tmp_path: Path):
    issues = load_ledger().issues[:3]
    ids = [*(issue.id for issue in issues), issues[0].id, "of-my-own"]
    cases = [fabricate.case(f"op{i}/float32/forward/sample-0") for i in range(len(ids))]
    records = [fabricate.record(case, Status.KNOWN) for case in cases]
    records = [replace(r, verdict=replace(r.verdict, issue=issue)) for r, issue in zip(records, ids, strict=True)]
    gone = fabricate.record(fabricate.case("gone/float32/forward/sample-0"), Status.XPASS, symptom="agrees, but")
    path = fabricate.database(tmp_path / "a.db", [*records, gone])
    text = run("show", "--db", path)
    assert "6 cases: 1 pass, 5 known, 0 new" in text
    (line,) = [line for line in text.splitlines() if line.startswith("known: ")]
    assert line.startswith("known: 5 cases of 4 known issues (")
    for severity in Severity:
        count = sum(issue.severity is severity for issue in issues)
        assert (f"{count} {severity.value}" in line) is (count > 0)
    assert text.count("opinfo/op") == 0
    assert text.count(gone.case_id) == 1
    assert "although a known issue says that they differ, so its entry can go (1)" in text
    single = run("show", cases[0].case_id, "--db", path)
    assert f"known issue: {ids[0]}; fail_accuracy without it (`torch-oracle issues {ids[0]}` shows it)" in single
    assert "known issue: made-up-issue (`torch-oracle issues made-up-issue` shows it)" in run(
        "show", gone.case_id, "--db", path
    )


NASTY = "a\x1b[2J\x07\rb\u202ec\u2066d\u200fe\x9bf\u2028g"


def test_nothing_that_a_subject_wrote_reaches_a_terminal_unescaped(tmp_path: Path):
    records = [
        fabricate.record(
            fabricate.case(f"{NASTY}{status.value}/x", suite="s" + NASTY, subject="t" + NASTY), status, symptom=NASTY
        )
        for status in Status
    ]
    worst = replace(fabricate.WORST, where=NASTY, eager=NASTY, subject=NASTY, truth=NASTY)
    dressed = []
    for r in records:
        verdict = replace(r.verdict, worst=worst, also=(NASTY,), explained=(NASTY,), stage=NASTY)
        dressed.append(replace(r, verdict=verdict, traceback=f"x\n\t{NASTY}", repro=NASTY, tags=(NASTY,)))
    path = fabricate.database(
        tmp_path / "a.db", dressed, run_id=NASTY, environment={"torch": NASTY, NASTY: NASTY, "cores": NASTY}
    )
    other = fabricate.database(tmp_path / "b.db", [fabricate.record(fabricate.case())])
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("# none\n")
    texts = [
        run("show", "--db", path),
        run("show", "--db", path, "--all", "--speed"),
        run("show", "s*", "--db", path, "--all"),
        run("show", "--db", path, "--runs"),
        run("gate", "--db", path, "--baseline", baseline, expect=1),
        run("compare", other, path, "--all", expect=1),
        run("compare", path, other, "--all", expect=1),
        run("compare", other, path, "--markdown", expect=1),
        run("merge", tmp_path / "out\u202e.db", path),
    ]
    for name in ("a.md", "a.xml"):
        run("export", tmp_path / name, "--db", path)
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    for text in texts:
        assert {char for char in text if not char.isprintable()} <= {"\n", "\t"}
        assert "\\u202e" in text


# ----------------------------------------------------------------------------------------------------------- compare


def test_compare_exits_1_for_a_missing_row_and_names_it(base: Path, head: Path):
    text = run("compare", base, head, expect=1)
    assert "missing row (1)" in text
    assert "fixed (1)" in text
    assert "speedup over eager changed (1)" in text
    assert run("compare", base, head, "--markdown", expect=1).startswith("## comparison\n")
    assert json.loads(run("compare", base, head, "--json", expect=1))["totals"]["missing row"] == 1


def test_compare_of_a_run_with_itself_is_clean_and_a_slowdown_fails_only_when_asked(base: Path, tmp_path: Path):
    run("compare", base, base)
    case = fabricate.case("add/float32/0")
    fast, slow = (
        fabricate.database(tmp_path / f"{name}.db", [fabricate.record(case, speedup=speedup)])
        for name, speedup in (("fast", 2.0), ("slow", 1.0))
    )
    run("compare", fast, slow)
    run("compare", fast, slow, "--fail-on-slower", expect=1)
    run("compare", slow, fast, "--fail-on-slower")


def test_compare_of_a_run_with_itself_says_so(base: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit) as ended:
        commands.compare(str(base), f"{base}#run-1")
    assert ended.value.exit_code == 0
    assert "are the same run, run-1" in capsys.readouterr().err


def test_compare_takes_a_run_of_a_database(base: Path):
    with Store.open(base, create=False) as store:
        fabricate.write_run(store, [fabricate.record(fabricate.case("add/float32/0"))], run_id="run-2")
    run("compare", f"{base}#run-2", f"{base}#run-1", expect=1)
    run("compare", f"{base}#run-1", f"{base}#run-1")
    with pytest.raises(UsageError, match="run 'run-9' is not in"):
        run("compare", f"{base}#run-9", base)


# -------------------------------------------------------------------------------------------------------------- gate


def test_gate_update_then_gate_then_a_changed_run(base: Path, tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    assert "gate: open" in run("gate", "--db", base, "--baseline", baseline, "--update")
    first = baseline.read_text()
    assert first.count("| unreviewed | - | expires ") == 2
    reviewed = first.replace("unreviewed | -", "rounding | https://example.org/7")
    baseline.write_text(reviewed)
    run("gate", "--db", base, "--baseline", baseline)
    run("gate", "--db", base, "--baseline", baseline, "--update")
    assert baseline.read_text() == reviewed
    with Store.open(base, create=False) as store:
        fixed = [fabricate.record(r) for r in store.planned()]
        store_path = fabricate.database(tmp_path / "fixed.db", fixed)
    text = run("gate", "--db", store_path, "--baseline", baseline, expect=1)
    assert text.count("accepted, but passes now") == 2
    data = json.loads(run("gate", "--db", store_path, "--baseline", baseline, "--json", expect=1))
    assert data["is_open"] is False
    assert "gate: open" in run("gate", "--db", store_path, "--baseline", baseline, "--update")
    assert "opinfo/" not in baseline.read_text()


def test_gate_fails_for_a_run_that_was_stopped_and_does_not_update_from_an_unfinished_run(head: Path, tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("# none\n")
    text = run("gate", "--db", head, "--baseline", baseline, expect=1)
    assert "gate: closed (1)" in text
    assert "the run was stopped before 1 of its 3 cases had run" in text
    with pytest.raises(UsageError, match="--resume"):
        run("gate", "--db", head, "--baseline", baseline, "--update")
    assert baseline.read_text() == "# none\n"


def test_gate_without_a_baseline_or_with_a_bad_one_is_a_usage_error(base: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="--update"):
        run("gate", "--db", base, "--baseline", tmp_path / "absent.txt")
    (tmp_path / "bad.txt").write_text("nonsense\n")
    for update in ([], ["--update"]):
        with pytest.raises(UsageError, match="line 1"):
            run("gate", "--db", base, "--baseline", tmp_path / "bad.txt", *update)
    assert (tmp_path / "bad.txt").read_text() == "nonsense\n"
    with pytest.raises(UsageError, match="--expires-days 0"):
        run("gate", "--db", base, "--baseline", tmp_path / "a.txt", "--update", "--expires-days", "0")


def test_gate_suggests_a_patch_that_makes_the_baseline_what_update_would(base: Path, tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("# ours\nopinfo/gone@inductor | fail_grad | rounding | - | expires never\n")
    before = baseline.read_text()
    patch = run("gate", "--db", base, "--baseline", baseline, "--suggest")
    assert baseline.read_text() == before
    assert "-opinfo/gone@inductor" in patch
    updated = tmp_path / "updated.txt"
    run("gate", "--db", base, "--baseline", updated, "--update")
    subprocess.run(["git", "apply", "--unsafe-paths", "-p1", "-"], input=patch, text=True, check=True, cwd="/")
    assert baseline.read_text() == updated.read_text()
    assert run("gate", "--db", base, "--baseline", baseline, "--suggest") == ""


def test_a_gate_without_a_baseline_names_an_option_that_keeps_the_database(tmp_path: Path):
    db = fabricate.database(tmp_path / "mine.db", [fabricate.record(fabricate.case(), Status.FAIL_GRAD)])
    words = ("gate", "--db", db, "--baseline", tmp_path / "new.txt")
    with pytest.raises(UsageError) as caught:
        run(*words)
    assert "torch-oracle gate" not in caught.value.do  # such a command would read another database than this one
    assert "add --update to this command" in caught.value.do
    assert "1 accepted failures hold" in run(*words, "--update")


def test_a_gate_that_measured_nothing_has_its_own_exit_code(tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("")
    skipped = [fabricate.record(fabricate.case(), Status.PASS_DUE_TO_SKIP)]
    nothing = fabricate.database(tmp_path / "nothing.db", skipped)
    assert "nothing was compared" in run("gate", "--db", nothing, "--baseline", baseline, expect=4)
    untimed = fabricate.database(tmp_path / "untimed.db", [fabricate.record(fabricate.case())])
    words = ("--db", untimed, "--baseline", baseline, "--base", untimed, "--slower", "5")
    assert "nothing was timed in both runs (sweep --speed times cases)" in run("gate", *words, expect=4)
    with pytest.raises(UsageError, match="a budget without --base"):
        run("gate", *words[:4], "--slower", "5")
    with pytest.raises(UsageError, match="--slower -1"):
        run("gate", *words[:6], "--slower", "-1")


def test_a_gate_with_budgets_is_closed_by_the_cases_that_became_slower_than_allowed(tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("")
    cases = [fabricate.case(f"op{number}/0") for number in range(20)]

    def database(name: str, first_speedup: float) -> Path:
        records = [
            fabricate.record(case, speedup=2.0 if number else first_speedup) for number, case in enumerate(cases)
        ]
        return fabricate.database(tmp_path / name, records)

    base, head = database("base.db", 2.0), database("head.db", 1.0)
    words = ("--db", head, "--baseline", baseline, "--base", base)
    text = run("gate", *words, "--slower", "20", expect=1)
    assert "gate: closed (1)" in text
    assert "100.0 % slower than in run-1, allowed 20 %" in text.replace("\n", " ")
    assert "gate: open" in run("gate", *words, "--slower", "150")
    assert "gate: open" in run("gate", *words, "--compile-slower", "10")


def test_a_budget_is_not_met_by_a_run_on_another_machine(tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("")
    records = [fabricate.record(fabricate.case(), speedup=2.0)]
    databases = [
        fabricate.database(tmp_path / f"{model}.db", records, environment={**fabricate.ENVIRONMENT, "cpu_model": model})
        for model in ("one", "another")
    ]
    words = ("--db", databases[1], "--baseline", baseline, "--base", databases[0])
    for budget in ("--slower", "--compile-slower"):
        assert "base ran on one, head on another" in run("gate", *words, budget, "5", expect=1)


def test_failures_are_told_by_the_exit_code_where_nothing_was_timed(tmp_path: Path):
    baseline = tmp_path / "accepted.txt"
    baseline.write_text("")
    passing = fabricate.database(tmp_path / "base.db", [fabricate.record(fabricate.case())])
    failing = fabricate.database(tmp_path / "head.db", [fabricate.record(fabricate.case(), Status.FAIL_GRAD)])
    run("gate", "--db", failing, "--baseline", baseline, "--base", passing, "--slower", "5", expect=1)


# -------------------------------------------------------------------------------------------------- export and merge


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.md", "a.xml"])
def test_export_writes_by_suffix(base: Path, tmp_path: Path, name: str):
    run("export", tmp_path / name, "--db", base)
    assert (tmp_path / name).stat().st_size > 100


def test_export_selects_and_includes_missing_rows(head: Path, tmp_path: Path):
    out = tmp_path / "a.jsonl"
    run("export", out, "--db", head)
    assert [record.verdict.status.value for record in from_json_lines(out.read_text())] == ["pass", "pass", "not_run"]
    run("export", out, "--db", head, "--subject", "inductor[mode=max-autotune]")
    assert len(from_json_lines(out.read_text())) == 1
    run("export", out, "--db", head, "--match", "opinfo/add/*")
    assert len(from_json_lines(out.read_text())) == 1
    with pytest.raises(UsageError, match="none of the 3 cases"):
        run("export", out, "--db", head, "--suite", "models")
    run("export", tmp_path / "b.csv", "--db", head, "--subject", "inductor", "--format", "dynamo-accuracy")
    assert (tmp_path / "b.csv").read_text().startswith("dev,name,batch_size,accuracy,")


def test_merge_of_one_whole_sweep_is_a_copy(base: Path, tmp_path: Path):
    text = run("merge", tmp_path / "out.db", base)
    assert "3 of 3 cases recorded; 3 cases and 3 records added from 1 runs" in text
    assert json.loads(run("merge", tmp_path / "out.db", base, "--json"))["records_added"] == 0
    run("compare", base, tmp_path / "out.db")


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "words",
    [
        ["show", "--db", "absent.db"],
        ["show", "nothing/*", "--db", "{base}"],
        ["show", "--db", "{base}", "--run", "absent"],
        ["compare", "absent.db", "{base}"],
        ["export", "out.txt", "--db", "{base}"],
        ["export", "out", "--db", "{base}", "--format", "xlsx"],
        ["export", "absent/out.csv", "--db", "{base}"],
        ["export", "out.csv", "--db", "{base}", "--format", "dynamo-speedup"],
        ["merge", "out.db", "absent.db"],
    ],
    ids=" ".join,
)
def test_bad_input_is_a_usage_error_with_what_to_do_and_writes_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError) as caught:
        run(*(word.format(base=base) for word in words))
    assert caught.value.exit_code == 2
    assert caught.value.do
    assert sorted(tmp_path.iterdir()) == before


def test_every_command_documents_itself_and_its_options():
    for name in ("show", "compare", "gate", "export", "merge"):
        text = " ".join(run(name, "--help").split())
        doc = (getattr(commands, name).__doc__ or "").split(".")[0]
        assert doc[:40] in text


def test_results_never_load_torch():
    modules = [f"results.{path.stem}" for path in (ROOT / "results").glob("*.py") if path.stem != "__init__"]
    assert len(modules) > 10
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
