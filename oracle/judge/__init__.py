"""The judge: what eager did beside what a subject did, and a verdict."""

from oracle.judge.evidence import Evidence, Promises, Runs
from oracle.judge.judging import judge

__all__ = ["Evidence", "Promises", "Runs", "judge"]
