"""What capture shares with its users: per-thread state, marks, counters, errors; and helpers under upstream's names."""
