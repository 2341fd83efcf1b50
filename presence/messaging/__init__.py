"""Messages between users: from a sender's connection to each session of the recipient."""
