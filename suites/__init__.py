"""suites: collections of programs for sweeps: operators (OpInfo), models, Python features, regressions, exports."""
