"""What strangers can do to a port that is open to everybody, measured: a case for each promise."""
