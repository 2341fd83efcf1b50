"""Faults at the rim, each kind tried on everything it can hit; each prints what it tried and what held."""
