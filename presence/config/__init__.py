"""Settings: their fields, where values come from, and what contradicts what."""
