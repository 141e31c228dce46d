"""`python -m suites.mutations.minimise --db FILE --subject NAME`: a few small programs for every kind of failure of a run.

Programs are judged in this process: for subjects that may crash it, run the suite and reduce by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracle.case import CaseOptions, CaseResult, EagerState, judge_subject
from oracle.program.build import instantiate
from oracle.records import Record
from oracle.subjects.base import Subject
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict
from results.store import LATEST, Store
from suites.mutations.buckets import Judged, bucket_of, failures_by_bucket
from suites.mutations.generate import generate
from suites.mutations.recipe import Recipe
from suites.mutations.reduce import reduced


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimised:
    """One failure, reduced."""

    name: str
    bucket: str
    count: int  # cases in the bucket
    recipe: Recipe
    verdict: Verdict

    def text(self) -> str:
        return (
            f"# {self.count} x {self.bucket}\n# {self.name}: {self.verdict.status.value}: {self.verdict.symptom}\n"
            f"{self.recipe.source()}# grad_mode={self.recipe.grad_mode} backward={self.recipe.is_differentiated} "
            f"calls={self.recipe.calls}\n"
        )


def judged(recipe: Recipe, subject: Subject, *, name: str = "candidate", seed: int = 0) -> CaseResult:
    """A recipe, judged in this process."""
    program = recipe.to_program(name=name, seed=seed)
    eager = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=eager, subject=subject, options=CaseOptions())


def recipe_of(name: str) -> Recipe:
    """The recipe of a program's name, "theme/number"."""
    theme, _, number = name.partition("/")
    recipe = generate(theme, int(number))
    assert recipe is not None, f"{name} gives no program"
    return recipe


def minimise(records: list[Record], subject_name: str, *, per_bucket: int, is_loose: bool) -> Iterator[Minimised]:
    """`per_bucket` reduced programs of each bucket; `is_loose`: a smaller program may raise something else."""
    subject = load(resolve(subject_name))
    for bucket, members in failures_by_bucket(records, subject_name).items():
        seen: set[str] = set()
        for record in members[:per_bucket]:
            status = record.verdict.status
            if status in (Status.CRASH, Status.TIMEOUT, Status.OOM):
                continue
            key = kind_of(record)

            def shows(recipe: Recipe, status: Status = status, key: str = key, seed: int = record.seed) -> bool:
                result = judged(recipe, subject, seed=seed)
                return result.verdict.status is status and (is_loose or kind_of(result) == key)

            recipe = recipe_of(record.name)
            if not shows(recipe):
                continue  # mended since the run
            small = reduced(recipe, shows)
            if small.source() in seen:
                continue
            seen.add(small.source())
            verdict = judged(small, subject, seed=record.seed).verdict
            yield Minimised(name=record.name, bucket=bucket, count=len(members), recipe=small, verdict=verdict)


def kind_of(result: Judged) -> str:
    """What kind of failure: of one that raises, its bucket."""
    return bucket_of(result) if result.verdict.status is Status.FAIL_TO_RUN else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", required=True)
    parser.add_argument("--run", default=LATEST)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--per-bucket", type=int, default=1)
    parser.add_argument("--loose", action="store_true")
    parser.add_argument("--list", action="store_true", help="only count the buckets")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with Store.open(given.db, create=False, read_only=True) as store:
        records = list(store.records(store.run(given.run).run_id))
    if given.list:
        for bucket, members in failures_by_bucket(records, given.subject).items():
            sys.stdout.write(f"{len(members):5d} {bucket}   {members[0].name}\n")
        return
    for found in minimise(records, given.subject, per_bucket=given.per_bucket, is_loose=given.loose):
        sys.stdout.write(found.text() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
