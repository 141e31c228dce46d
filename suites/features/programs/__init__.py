"""Programs of the features suite, one per file. They are data: read by suites.features.suite, executed by workers."""
