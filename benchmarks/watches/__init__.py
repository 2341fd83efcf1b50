"""Clients that watch their friends: what each change costs, and whether every view is right."""
