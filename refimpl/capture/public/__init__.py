"""What capture and those who use it share: state of a thread, marks, counters, errors; and upstream's helpers by their names."""
