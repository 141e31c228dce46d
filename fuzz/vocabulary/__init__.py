"""The grammar: operators with their operands, statements, and whole programs."""
