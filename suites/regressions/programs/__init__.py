"""Programs of the regressions suite, one per file. They are data: read by suites.regressions.suite, executed by workers."""
