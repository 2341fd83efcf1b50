"""``presence demo``: a real server and clients, and a comparison of their actions with the events."""
