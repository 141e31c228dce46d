"""Counters of what was captured, for tests and reports.

Counterpart: torch/_dynamo/utils.py counters
"""

from __future__ import annotations

from collections import Counter, defaultdict

# "frames": total, ok; "stats": unique_graphs, calls_captured; "graph_break": by reason; "recompile_limit": by function
counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
