"""Reading what Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Series, by name and labels."""


def parsed(text: str) -> Found:
    """Return all series of a text."""
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def value(found: Found, name: str, **labels: str) -> float | None:
    """Return the number of a series; `name` without its prefix."""
    return found.get((f"presence_{name}", frozenset(labels.items())))
