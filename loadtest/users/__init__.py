"""The devices that locust runs, their options, and the judge of the server's events."""
