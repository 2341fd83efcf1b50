"""What those who look cost those who are looked at: ``python -m loadtest.operators``."""
