"""The judge: compares a subject's run of a program with eager's and returns a verdict."""

from oracle.judge.evidence import Evidence, Promises, Runs
from oracle.judge.judging import judge

__all__ = ["Evidence", "Promises", "Runs", "judge"]
