"""How the cases of a run ended in earlier runs: a table of status letters and speedups, one row a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import sqlalchemy as sa

from oracle.verdict import Status
from results.engine import Location, open_engine, reading
from results.history import COMPARED_FACTS, tested, weighed_switches
from results.outcomes import outcome_of
from results.schema import CASES, RECORDS, RUNS, run_facts
from results.store import COMPLETE, RunInfo, Store

RUNS_SHOWN: Final = 14

# One letter for each outcome, so that the history of a case is a short word: "ppppfp".
LETTERS: Final[Mapping[str, str]] = {"passed": "p", "known": "k", "new": "f", "not_compared": "n", "not_run": "-"}
ABSENT: Final = "."  # the run did not plan the case
_AGREES: Final = "p"
_FAILS: Final = "f"  # a known issue is neither


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Earlier runs, oldest first, and the run itself last. Arrays have a row for each run and a column for each case."""

    runs: tuple[RunInfo, ...]
    letters: np.ndarray  # uint8 [runs, cases], ASCII of LETTERS or ABSENT
    speedup: np.ndarray  # float32 [runs, cases], NaN where not timed
    compile_cold_s: np.ndarray  # float32 [runs, cases], seconds, NaN where not measured
    is_same: np.ndarray  # bool [runs, cases], whether the run had the case with the program that it has now
    version: np.ndarray  # int32 [runs, cases], number of the version that the case's subject had; 0: not known
    kinds: tuple[int, ...]  # of each run: runs with the same versions, on the same machine, have the same number

    def word(self, case: int) -> str:
        """The letters of one case, oldest run first."""
        return self.letters[:, case].tobytes().decode("ascii")

    def steady_words(self, case: int) -> tuple[str, ...]:
        """The letters of the runs with the case's present program, one word for each kind of run: all else may change them."""
        word = np.where(self.is_same[:, case], self.letters[:, case], ord(ABSENT)).tobytes().decode("ascii")
        words = ["" for _ in range(max(self.kinds) + 1)]
        for kind, letter in zip(self.kinds, word, strict=True):
            words[kind] += letter
        return tuple(words)

    def steady_versions(self, case: int) -> tuple[tuple[int, ...], ...]:
        """For each letter of `steady_words` the number of the subject's version; empty if none is known."""
        numbers = self.version[:, case]
        if not numbers.any():
            return ()
        found: list[list[int]] = [[] for _ in range(max(self.kinds) + 1)]
        for kind, number in zip(self.kinds, numbers.tolist(), strict=True):
            found[kind].append(number)
        return tuple(map(tuple, found))

    def counts(self, run: int) -> dict[str, int]:
        """How many cases have each outcome in a run; cases that it did not plan are not counted."""
        return {outcome: int((self.letters[run] == ord(letter)).sum()) for outcome, letter in LETTERS.items()}


def is_flaky(words: Sequence[str], versions: Sequence[Sequence[int]] = ()) -> bool:
    """Whether a case is flaky as `results.history.find_flakiness` says: "ppfp" is, "ppff" (a bug that came) is not."""
    return any(
        weighed_switches(
            [
                (letter == _FAILS, str(number) if number else "")
                for letter, number in zip(word, numbers, strict=True)
                if letter in (_FAILS, _AGREES)
            ]
        )
        >= 2
        for word, numbers in zip(words, versions or [[0] * len(word) for word in words], strict=True)
    )


def read_history(
    sources: Sequence[tuple[str, RunInfo]],
    case_ids: Mapping[str, int],
    *,
    programs: Mapping[str, str],
    limit: int = RUNS_SHOWN,
) -> History:
    """The last `limit` runs up to the runs of `sources` (database, run), with the cases of `case_ids` (id -> column).

    `programs` has the hash of each case's present program.

    A run without any of these cases is left out, unless it is the last source's.
    """
    found: dict[str, tuple[str, RunInfo]] = {}
    for place, last in sources:
        with Store.open(place, create=False, read_only=True) as store:
            runs = store.runs()
        at = next(i for i, run in enumerate(runs) if run.run_id == last.run_id)
        found |= {run.run_id: (place, run) for run in runs[: at + 1]}
    head = sources[-1][1]
    earlier = sorted(
        (entry for key, entry in found.items() if key != head.run_id), key=lambda entry: entry[1].started_at
    )
    chosen = [*earlier[len(earlier) - min(len(earlier), limit - 1) :], sources[-1]]
    kept: list[tuple[RunInfo, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    numbers: dict[str, int] = {"": 0}
    for place, run in chosen:
        rows = _read_run(place, run, case_ids, programs, numbers)
        if run.run_id == head.run_id or (rows[0] != ord(ABSENT)).any():
            kept.append((run, *rows))
    return History(
        runs=tuple(run for run, *_ in kept),
        letters=np.stack([rows[0] for _, *rows in kept]),
        speedup=np.stack([rows[1] for _, *rows in kept]),
        compile_cold_s=np.stack([rows[2] for _, *rows in kept]),
        is_same=np.stack([rows[3] for _, *rows in kept]),
        version=np.stack([rows[4] for _, *rows in kept]),
        kinds=_kinds([run for run, *_ in kept]),
    )


def _kinds(runs: Sequence[RunInfo]) -> tuple[int, ...]:
    facts = [tuple(run_facts(run.environment)[name] for name in COMPARED_FACTS) for run in runs]
    numbers = {fact: number for number, fact in enumerate(dict.fromkeys(facts))}
    return tuple(numbers[fact] for fact in facts)


_LETTER_OF: Final = {status.value: ord(LETTERS[outcome_of(status)]) for status in Status}


def _read_run(
    place: str, run: RunInfo, case_ids: Mapping[str, int], programs: Mapping[str, str], numbers: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rows of the arrays for one run. `numbers` gets a number for each version of a subject that it has not yet."""
    label, versions = tested(run.environment)
    number_of = {
        subject: numbers.setdefault(f"{label}{versions.get(subject, '')}", len(numbers)) for subject in run.subjects
    }
    letters = np.full(len(case_ids), ord(ABSENT), dtype=np.uint8)
    speedup = np.full(len(case_ids), np.nan, dtype=np.float32)
    compile_s = np.full(len(case_ids), np.nan, dtype=np.float32)
    is_same = np.zeros(len(case_ids), dtype=bool)
    version = np.zeros(len(case_ids), dtype=np.int32)
    absent = _LETTER_OF[Status.MISSING.value if run.state == COMPLETE else Status.NOT_RUN.value]
    columns = (RECORDS.c.status, RECORDS.c.speedup, RECORDS.c.compile_cold_s)
    query = (
        sa.select(CASES.c.case_id, CASES.c.program_hash, CASES.c.subject, *columns)
        .join_from(
            CASES, RECORDS, sa.and_(RECORDS.c.run == CASES.c.run, RECORDS.c.ordinal == CASES.c.ordinal), isouter=True
        )
        .join(RUNS, RUNS.c.run == CASES.c.run)
        .where(RUNS.c.run_id == run.run_id)
    )
    location = Location.parse(place)
    engine = open_engine(location, create=False, read_only=True)
    try:
        with reading(engine, location) as connection:
            for case_id, program, subject, status, ratio, cold in connection.execution_options(
                yield_per=10_000
            ).execute(query):
                column = case_ids.get(case_id)
                if column is None:
                    continue
                is_same[column] = program == programs.get(case_id)
                version[column] = number_of.get(subject, 0)
                # A newer version may have written a status that this one does not know: it says nothing of the case then.
                letters[column] = absent if status is None else _LETTER_OF.get(status, ord(ABSENT))
                if ratio is not None:
                    speedup[column] = ratio
                if cold is not None:
                    compile_s[column] = cold
    finally:
        engine.dispose()
    return letters, speedup, compile_s, is_same, version
