"""Suite: a named collection of programs. It lists its groups cheaply, and the programs of a group in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from oracle.errors import UsageError
from oracle.program import Program

_Group = TypeVar("_Group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The programs that the user selected. Every suite honours every field, or says that it has no such axis.

    Empty tuples mean the suite's default. `match` is a glob on the group ("add", "nn.functional.*") or the whole program name
    ("add/float32/forward/*"). `quick` is set for the default sweep, in which the user named no programs: each suite takes a few,
    by a rule that its class states. `foreign`: it is for subjects that are no stage of torch's own compiler.
    """

    match: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()  # "forward", "backward"
    device: str = "cpu"
    max_samples: int | None = None  # largest number of programs per group, dtype and direction, spread evenly
    quick: bool = False
    foreign: bool = False
    ledgers: tuple[str, ...] = ()  # paths of the user's own ledgers, whose programs are regressions too
    recording: str = ""  # path of the file that the suite recorded replays

    def wants(self, *, group: str, name: str) -> bool:
        return not self.match or any(fnmatchcase(group, glob) or fnmatchcase(name, glob) for glob in self.match)

    def may_want_group(self, group: str) -> bool:
        """False only if no program of the group can match."""
        return not self.match or any(
            fnmatchcase(group, glob) or fnmatchcase(group, glob.split("/", 1)[0]) for glob in self.match
        )

    def to_json(self) -> dict[str, Any]:
        """Without `foreign` where it is not set: runs of one selection are compared by it, those of older versions too."""
        data = asdict(self)
        return data if self.foreign else {key: value for key, value in data.items() if key != "foreign"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Selection:
        axes = ("match", "tags", "dtypes", "directions", "ledgers")
        tuples = {key: tuple(data.get(key, ())) for key in axes}
        return cls(
            device=data.get("device", "cpu"),
            max_samples=data.get("max_samples"),
            quick=data.get("quick", False),
            foreign=data.get("foreign", False),
            recording=data.get("recording", ""),
            **tuples,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteProgram:
    """A program with the labels used for selection and tables."""

    program: Program
    group: str
    dtype: str = ""
    direction: str = "forward"
    tags: tuple[str, ...] = ()
    timeout_s: float | None = None  # None: the run's default
    memory_bytes: int | None = None
    subjects: tuple[str, ...] = ()  # the suite's subjects that run it if the user named none; empty: all


class Suite(Protocol):
    """A named collection of programs. One instance per process; both methods are deterministic."""

    def groups(self, selection: Selection) -> list[str]:
        """Names of all groups that can hold a selected program. May import torch: called in a worker."""
        ...

    def programs(self, selection: Selection, group: str) -> Iterator[SuiteProgram]:
        """The selected programs of one group, in a fixed order. Called in a worker."""
        ...


def group_of(groups: Mapping[str, _Group], name: str, *, suite: str, what: str) -> _Group:
    """The entry of a group. Raises UsageError if there is none; `what` is the word for one of the suite's groups."""
    if name not in groups:
        raise UsageError(
            seen=f"{what} {name!r}",
            expected=f"one of the {len(groups)} groups of the suite {suite}",
            do=f"`torch-oracle list {suite}` prints them",
        )
    return groups[name]
