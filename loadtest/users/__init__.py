"""The devices that locust runs, their options, and the judge of what the server tells of them."""
