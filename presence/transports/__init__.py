"""Moving bytes: the transports know sockets and streams, and no policy."""
