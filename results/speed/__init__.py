"""Verdicts on measurements: whether a case became faster or slower, from several processes, its history and other cases.

`judge_speed` judges one quantity of all cases of a comparison, `judge_count` one count of one case. They work on plain numbers.
"""

from oracle.costs import duration_class
from results.speed.counts import judge_count
from results.speed.samples import SpeedCase, log_costs
from results.speed.verdicts import Drift, Judgement, SpeedVerdict, Word, judge_speed

__all__ = [
    "Drift",
    "Judgement",
    "SpeedCase",
    "SpeedVerdict",
    "Word",
    "duration_class",
    "judge_count",
    "judge_speed",
    "log_costs",
]
