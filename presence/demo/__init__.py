"""``presence demo``: a real server, real clients, and the comparison of what they did with what was told."""
