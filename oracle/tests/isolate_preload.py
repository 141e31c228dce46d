"""A module that loads, or does not, as the variable ORACLE_TEST_IMPORT says."""

import ctypes
import gc
import os
import sys
import time

match os.environ.get("ORACLE_TEST_IMPORT"):
    case "raise":
        raise ImportError("this module does not load")
    case "exit":
        print("leaving", file=sys.stderr)
        os._exit(7)
    case "segfault":
        ctypes.string_at(0)
    case "hang":
        time.sleep(60)
    case "sleep":
        time.sleep(0.6)
    case _:
        pass

CALLED_IN: list[int] = []
COLLECTS = gc.isenabled()


def note() -> None:
    """Called by workers' own process or by the one that they are forked from."""
    CALLED_IN.append(os.getpid())
