"""Whom clients watch and ask about: states, watches, what is known of users, and who is told."""
