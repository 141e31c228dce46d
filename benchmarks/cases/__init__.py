"""The benchmarks, by subject: each function marked `@benchmark` yields its cases."""
