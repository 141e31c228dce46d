"""The vocabulary that programs are drawn from: operators with their operands, statements, whole programs."""
