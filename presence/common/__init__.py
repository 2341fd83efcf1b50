"""Small tools without knowledge of presence: clock, rate limits, circuit breaker, logs, text, URLs."""
