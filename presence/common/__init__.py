"""Small tools that know nothing of presence: time, rate limits, logs, text, URLs."""
