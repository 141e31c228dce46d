"""Policies."""

from __future__ import annotations

from oracle.program import ComparePolicy
from suites.opinfo.database import OpInfo

_DEFAULT = ComparePolicy()


def policy_for(info: OpInfo, *, dtype: str, direction: str, kind: str, index: int, device: str) -> ComparePolicy:
    return _DEFAULT
