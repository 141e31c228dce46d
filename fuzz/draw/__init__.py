"""Where random choices come from, and the scene that a program is drawn in: inputs, what is defined, places in memory."""
