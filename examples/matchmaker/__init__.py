"""A matchmaker: pairs of players who are online, and a winner if one stays away."""
