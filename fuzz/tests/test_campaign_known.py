"""Known issues in a campaign: which buckets they explain, and what has become of them."""

from __future__ import annotations

from pathlib import Path

from fuzz.campaign.known import id_of_known, id_of_replayed, issues_of, looked_at_again
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import FoundBucket
from fuzz.program.structure import FuzzProgram, OpCall, Ref
from oracle.isolate import Pool
from oracle.subjects.registry import resolve
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

FAULTY = "compile:fuzz.tests.planted:raises"
LEDGER = f"""
[[issue]]
id = "raises"
link = "https://example.org/1"
title = "never compiles"
rung = "{FAULTY}"
severity = "refusal"
statuses = ["fail_to_run"]
expires = 2099-01-01
source = "import torch\\ndef program(x): return x.sin()\\ndef inputs(call): return (torch.ones(3),), {{}}"
finding = {{ operators = ["sin"] }}

[[issue]]
id = "was-wrong"
link = "https://example.org/2"
title = "was wrong once"
rung = "dynamo"
severity = "wrong value"
statuses = ["fail_accuracy"]
expires = 2099-01-01
source = "import torch\\ndef program(x): return x.cos()\\ndef inputs(call): return (torch.ones(3),), {{}}"
finding = {{ operators = ["cos"] }}
"""


def bucket(**changes: object) -> FoundBucket:
    fields = {
        "key": "k", "subject": FAULTY, "status": "fail_to_run", "kind": "NotImplementedError: no", "rung": FAULTY,
        "operators": ("sin",), "program": {"calls": []}, "source": "", "verdict": {}, "numbers": (1,),
    }  # fmt: skip
    return FoundBucket(**{**fields, **changes})


def test_a_known_issue_explains_its_buckets(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(LEDGER)
    issues = issues_of(str(tmp_path / "known.toml"))
    assert id_of_known(bucket(), issues) == "raises"
    assert id_of_known(bucket(operators=("tan",)), issues) == ""
    assert id_of_known(bucket(status="crash"), issues) == ""


def test_a_known_issue_explains_what_a_program_shows_again(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(LEDGER)
    issues = issues_of(str(tmp_path / "known.toml"))
    sin = OpCall(target="torch.sin", args=(Ref(name="x"),), results=("a",))
    program = FuzzProgram(arguments=("x",), statements=(sin,), result=Ref(name="a"))
    fails = Verdict(status=Status.FAIL_TO_RUN, symptom="NotImplementedError: no")
    assert id_of_replayed(program, fails, FAULTY, issues, stored={}) == "raises"
    assert id_of_replayed(program, fails, "inductor", issues, stored={}) == ""
    # The first wrong rung of the file is that of its own symptom, and says nothing of another one.
    symptom = symptom_of(fails)
    stored = {"status": symptom.status, "kind": symptom.kind, "rung": FAULTY}
    assert id_of_replayed(program, fails, "inductor", issues, stored=stored) == "raises"
    assert id_of_replayed(program, fails, "inductor", issues, stored={**stored, "kind": "another"}) == ""
    assert id_of_replayed(program, Verdict(status=Status.PASS), FAULTY, issues, stored=stored) == ""


def test_issues_on_the_way_to_the_subject_are_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(LEDGER)
    issues = issues_of(str(tmp_path / "known.toml"))
    with Pool(workers=1, preload=("torch", "oracle.case", "fuzz.campaign.worker")) as pool:
        own = looked_at_again(issues, CampaignSettings(subject=resolve(FAULTY)), pool)
        ladder = looked_at_again(issues, CampaignSettings(subject=resolve("aot_eager")), pool)
    assert [(found.issue.id, found.outcome) for found in own] == [("raises", "live")]
    assert [(found.issue.id, found.outcome) for found in ladder] == [("was-wrong", "fixed")]
    assert ladder[0].needs_attention
    assert not own[0].needs_attention


def test_the_ledger_of_torch_is_the_default() -> None:
    assert issues_of("torch")
    assert not issues_of("none")
