"""suites: what to run. Operators (OpInfo), models, Python features, regressions."""
