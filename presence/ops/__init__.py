"""What operators do from outside, through Redis: kick, forget, explain."""
