"""Messages from one user to another: taken from a connection, handed to each session of the recipient."""
