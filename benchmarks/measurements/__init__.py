"""Tables of what is counted rather than timed, each made by `python -m benchmarks.measurements.NAME`."""
