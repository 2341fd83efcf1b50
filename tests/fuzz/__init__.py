"""Coverage-guided fuzzing of the codec and of whole sessions; `python -m tests.fuzz` is the command."""
