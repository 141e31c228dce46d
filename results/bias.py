"""Find systematic errors over all cases of one operator, which are too small to show in a single case.

A case's verdict has the mean errors of its tensors as sums (`oracle.verdict.BiasSum`). The sums of one operator, subject, dtype
and device are added here and compared with eager's, as `oracle.judge.systematic` does for one tensor, with half its allowance.
Cases that are findings themselves are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from oracle.records import Record
from oracle.verdict import BiasSum
from results.render import TextTable

ALLOWANCE: Final = 0.05  # ULP by which the mean error may be larger than eager's, whatever the number of cases
STANDARD_ERRORS: Final = 5.0
FEWEST_CASES: Final = 2
# Dtypes in which a bias is only mentioned, since a compiler may use a less exact exponential there.
ADVISORY: Final = frozenset({"float32"})


BiasKey: TypeAlias = tuple[str, ...]  # suite, group, subject, device, dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasFinding:
    """One operator whose results are, on average, too large or too small on one subject."""

    suite: str
    group: str
    subject: str
    device: str
    cases: int
    bias: BiasSum
    limit: float  # of the size of the mean error, in ULP
    is_advisory: bool

    @property
    def key(self) -> BiasKey:
        """Identifies the same finding in another run."""
        return self.suite, self.group, self.subject, self.device, self.bias.dtype

    @property
    def relative(self) -> float:
        """Mean relative error: positive if results are too far from zero."""
        return self.bias.subject_mean * self.bias.eps

    @property
    def text(self) -> str:
        size, eager = _percent(abs(self.relative)), _percent(abs(self.bias.eager_mean * self.bias.eps))
        word = "large" if self.relative > 0 else "small"
        return (
            f"{self.bias.dtype} results of {self.group} are {size} too {word} over {self.cases} cases, eager's {eager}"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "relative": self.relative, "text": self.text}


def find_bias(records: Iterable[Record]) -> list[BiasFinding]:
    """Operators with a systematic error, largest first, advisory ones last. Records without error sums are ignored."""
    sums: dict[BiasKey, BiasSum] = {}
    cases: dict[BiasKey, int] = {}
    for record in records:
        if record.verdict.status.is_finding:
            continue
        for one in record.verdict.bias:
            add_sum(sums, cases, (record.suite, record.group, record.subject, record.device, one.dtype), one)
    return findings_of_sums(sums, cases)


def add_sum(sums: dict[BiasKey, BiasSum], cases: dict[BiasKey, int], key: BiasKey, one: BiasSum) -> None:
    """Add the error sum of one case."""
    sums[key] = sums[key] + one if key in sums else one
    cases[key] = cases.get(key, 0) + 1


def findings_of_sums(sums: Mapping[BiasKey, BiasSum], cases: Mapping[BiasKey, int]) -> list[BiasFinding]:
    """The systematic errors of sums over cases, and of the numbers of these cases."""
    found = [
        BiasFinding(
            suite=key[0],
            group=key[1],
            subject=key[2],
            device=key[3],
            cases=cases[key],
            bias=total,
            limit=limit,
            is_advisory=key[3] != "cpu" or total.dtype in ADVISORY,
        )
        for key, total in sums.items()
        if cases[key] >= FEWEST_CASES and abs(total.subject_mean) > (limit := limit_of(total))
    ]
    return sorted(found, key=_order)


def _order(finding: BiasFinding) -> tuple[bool, float, BiasKey]:
    # Rounded, since sums that a database adds in another order differ in their last digits.
    return finding.is_advisory, -float(f"{abs(finding.relative):.9g}"), finding.key


def limit_of(total: BiasSum) -> float:
    """The largest mean error of the subject, in ULP, that eager's own error and chance explain."""
    return abs(total.eager_mean) + ALLOWANCE + STANDARD_ERRORS * total.standard_error


def tables_of(
    found: Iterable[BiasFinding], *, limit: int | None = None, title: str = "systematic errors"
) -> list[TextTable]:
    """A table of the findings, or none."""
    found = list(found)
    if not found:
        return []
    shown = found if limit is None else found[:limit]
    rows = [
        (
            one.subject,
            one.text,
            f"{one.bias.subject_mean:+.2f}",
            f"{one.limit:.2f}",
            "advisory" if one.is_advisory else "finding",
        )
        for one in shown
    ]
    note = "each case is within tolerance, and their errors have one sign: mean error away from zero in units of the last place"
    if any(one.is_advisory for one in shown):
        note += "\nadvisory: on GPUs, and in float32, honest compilers are known to do so"
    if len(shown) < len(found):
        note += f"\nand {len(found) - len(shown)} more"
    return [
        TextTable(
            title=f"{title} ({len(found)})",
            columns=("subject", "what", "ulp", "limit", "weight"),
            rows=tuple(rows),
            right=frozenset({2, 3}),
            prose=frozenset({1}),
            note=note,
        )
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
