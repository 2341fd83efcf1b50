"""What came of a run, in words and as a table."""

from collections import Counter

from loadtest.chaos.measures import table as measured
from loadtest.chaos.options import Options, Result, story
from loadtest.outcome import spread

EXAMPLES = 20
NOTHING = "nothing injected"
EXAMPLES_OF_A_RULE = 4


def table(options: Options, result: Result) -> str:
    """Return the report in Markdown."""
    rows = [
        "| fault | times | the last one |",
        "| --- " * 3 + "|",
        *(
            f"| {kind.value.words} | {result.injected[kind]} | {result.proofs.get(kind, NOTHING)} |"
            for kind in options.kinds
        ),
    ]
    rules = Counter(finding.broken.rule for finding in result.findings)
    serve = options.serve
    lines = [
        f"seed {options.seed}; {options.nodes} nodes, {options.clients:,} clients; "
        f"T {serve.idle_timeout:g} s, lease {serve.lease:g} s, tick {serve.tick:g} s, "
        f"grace {options.grace:g} s, {serve.shards} shards"
        + (f"; without {options.guard}" if options.guard else ""),
        "",
        *(measured(result.measured) if options.plan else rows),
        "",
        "| measured | |",
        "| --- " * 2 + "|",
        f"| faults | {sum(result.injected.values())} of {len(result.injected)} kinds |",
        f"| broken promises | {sum(rules.values())} {dict(rules) if rules else ''} |",
        f"| Redis equal to the live sessions after a storm | {spread(result.equal_s)} |",
        *(f"| {name} | {value} |" for name, value in result.figures.items()),
    ]
    return "\n".join(lines)


def failures(options: Options, result: Result) -> list[str]:
    """Return what speaks against a run. If a kind of fault did not take place, it shows nothing of it."""
    absent = [kind.name.lower() for kind in options.kinds if not result.injected[kind]]
    late = [each for row in result.measured for each in row.broken]
    return [*(f"no {name} took place" for name in absent), *stories(result), *late, *result.broken[:EXAMPLES]]


def stories(result: Result) -> list[str]:
    """Return the broken promises in words, of each rule the first ones."""
    told: Counter[str] = Counter()
    lines = []
    for finding in result.findings:
        rule = finding.broken.rule
        told[rule] += 1
        if told[rule] <= EXAMPLES_OF_A_RULE:
            lines.append(story(finding, result.begun))
    return lines
