"""Transports: sockets, streams and TLS, without any policy."""
