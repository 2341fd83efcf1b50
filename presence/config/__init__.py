"""Settings: their fields, their sources, and conflicts between them."""
