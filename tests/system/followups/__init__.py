"""Follow-ups under faults: users who stayed away get one each, no others do, whatever is killed meanwhile."""
