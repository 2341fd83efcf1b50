"""How late the timer by key expiry is, in what surroundings."""
