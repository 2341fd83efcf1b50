"""Coverage-guided fuzzing of the codec against a second decoder; `python -m tests.fuzz` is the command."""
