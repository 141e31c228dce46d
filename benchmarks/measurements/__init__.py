"""Tables of counts rather than times, each made by `python -m benchmarks.measurements.NAME`."""
