"""The recorded suite: the operator calls of a user's program, replayed one by one.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "recorded"
DESCRIPTION = (
    "The operator calls of your own program, from `torch-oracle record`: each replayed with its shapes and ranges"
)
TAGS: dict[str, str] = {}
DTYPES: tuple[str, ...] = ()
DEFAULT_SUBJECTS = ("aot_eager", "inductor")
QUICK_SUBJECTS = DEFAULT_SUBJECTS
SUITE_PATH = "suites.recorded.suite:RecordedSuite"
ONLY_WHEN_NAMED = True  # it needs a file
