"""The judge: what eager did beside what a subject did, and a verdict."""

from oracle.judge.judging import judge

__all__ = ["judge"]
