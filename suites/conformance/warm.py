"""Importing this loads the test files of the process's job. Named as a preload of the workers, see `child.py`."""

from suites.conformance.child import loaded

loaded()
