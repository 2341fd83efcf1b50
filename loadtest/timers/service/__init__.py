"""The timer service beside a heap and trio's own deadlines; ``python -m loadtest.timers.service``."""
