"""Worker processes that share a timer in Redis, and are killed."""
