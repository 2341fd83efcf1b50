"""A server process: node, services, start and drain; and several workers on one port."""
