"""Nodes among themselves: leases, failure detection, fences, and the sweep of dead nodes."""
