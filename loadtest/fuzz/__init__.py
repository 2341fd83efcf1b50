"""Coverage-guided fuzzing of the codec and of whole sessions; `python -m loadtest.fuzz` is the command."""
