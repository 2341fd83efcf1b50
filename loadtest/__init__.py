"""Load tests and benchmarks: commands of their own, not part of the installed package."""
