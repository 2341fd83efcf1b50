"""Follow-ups under faults: who stayed away gets his, once, and nobody else, whoever is killed meanwhile."""
