"""Checks of what servers share in Redis: rights, slots, data, the table of leases. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from presence import __version__
from presence.doctor.findings import Finding, Unknown, fail, not_tried, ok, warn
from presence.doctor.redis_facts import RedisFacts, Slots
from presence.settings import Settings
from presence.store.nodes import NodeState
from presence.store.redis_store import DATA_VERSION

SLOTS: Final = 16_384  # of every Redis Cluster
_NAMED: Final = 5  # nodes, in one line


def rights(found: RedisFacts) -> list[Finding]:
    """Whether the user may do what servers do, and no more."""
    check, need = "redis rights", "what servers do, and nothing else: presence/docs/redis.md lists it"
    if isinstance(found.missing, Unknown):
        return [not_tried(check, need, found.missing.why)]
    if found.missing:
        have, _, mend = found.missing.partition(": mend it with ")
        return [fail(check, need, have, mend or "make the user anew, as presence/docs/redis.md says")]
    if found.no_events:
        return [warn(check, need, "the live page and /v1/events cannot read events", found.no_events)]
    if found.too_much:
        have = f"may {', '.join(found.too_much)}, too"
        mend = "a user of its own for servers: deploy/redis/users.acl, or presence/docs/redis.md"
        return [warn(check, need, have, mend)]
    return [ok(check, need, "just that")]


def cluster(found: RedisFacts) -> list[Finding]:
    """Return the findings about a cluster; none of one server."""
    if not found.is_cluster:
        return []
    if isinstance(found.slots, Unknown):
        return [
            not_tried(name, "CLUSTER SLOTS", found.slots.why, "ACL SETUSER with '+cluster|slots'")
            for name in ("slots", "slots' replicas")
        ]
    return [slots(found.slots), slots_replicas(found.slots), full_coverage(found)]


def slots(found: Sequence[Slots]) -> Finding:
    """Whether somebody serves each slot."""
    served = sum(each.last - each.first + 1 for each in found)
    need, have = f"all {SLOTS:,} served", f"{served:,}"
    if served == SLOTS:
        return ok("slots", need, have)
    return fail("slots", need, have, "redis-cli --cluster check HOST:PORT, then --cluster fix")


def slots_replicas(found: Sequence[Slots]) -> Finding:
    """Whether every primary has somebody who can take over."""
    need = "a replica of each primary"
    bare = sum(each.last - each.first + 1 for each in found if not each.replicas)
    if not bare:
        return ok("slots' replicas", need, f"{min((each.replicas for each in found), default=0)} at least")
    have = f"{bare:,} slots of primaries without one: if such a primary is lost, its shards stand still"
    mend = "redis-cli --cluster add-node NEW EXISTING --cluster-slave"
    return warn("slots' replicas", need, have, mend)


def full_coverage(found: RedisFacts) -> Finding:
    """Whether a primary that is lost stops the others, too."""
    check, need = "full coverage", "cluster-require-full-coverage no"
    told = [each.config for each in found.servers]
    refused = [each.why for each in told if isinstance(each, Unknown)]
    if refused:
        return not_tried(check, need, refused[0], "ACL SETUSER with '+config|get'")
    yes = [
        server.name
        for server, config in zip(found.servers, told, strict=True)
        if not isinstance(config, Unknown) and config.get("cluster-require-full-coverage", "no") != "no"
    ]
    if not yes:
        return ok(check, need, "no")
    mend = f"redis-cli CONFIG SET {need}, and in redis.conf, at each server"
    return warn(check, need, f"yes at {', '.join(yes)}: one that is lost stops all shards", mend)


def data(settings: Settings, found: RedisFacts) -> Finding:
    """Whether what is below the prefix is of these servers, and over as many shards."""
    check = "data"
    need = f"version {DATA_VERSION} and {settings.shard_count} shards below {settings.prefix}:"
    if isinstance(found.data, Unknown):
        return not_tried(check, need, found.data.why)
    version, shards = found.data
    if version is None and shards is None:
        return ok(check, need, "none yet: the first server writes it")
    have = f"version {version}, {shards} shards"
    if version != DATA_VERSION:
        return fail(check, need, have, "use another --prefix, or the release that wrote it")
    if shards != str(settings.shard_count):
        mend = f"--shards {shards}, as it was begun; or another --prefix"
        return fail(check, need, have, mend)
    return ok(check, need, have)


def nodes(found: RedisFacts) -> Finding:
    """Whether everybody in the table of leases lives, and is of one version."""
    check, need = "nodes", "everybody in the table alive and ready, of one version"
    if isinstance(found.nodes, Unknown):
        return not_tried(check, need, found.nodes.why)
    unwell = [
        f"{node.node} {node.status if node.status != 'alive' else node.readiness}"
        for node in found.nodes
        if node.status not in {"alive", "left"}
        or (node.status == "alive" and node.readiness not in {"ready", None})
    ]
    alive = [node for node in found.nodes if node.status == "alive"]
    versions = sorted({node.version or "unknown" for node in alive})
    if unwell:
        mend = "presence nodes; a silent one's users go offline soon, if it does not come back"
        return warn(check, need, _some(unwell), mend)
    if len(versions) > 1:
        return warn(check, need, f"versions {', '.join(versions)}", f"bring the others to {__version__}, too")
    return ok(check, need, f"{len(alive)}" if alive else "nobody yet")


def nodes_settings(settings: Settings, found: RedisFacts) -> Finding:
    """Whether nodes agree with each other, and with these settings, about what they share."""
    check, need = "nodes' settings", "alike at all nodes that share a Redis"
    if isinstance(found.nodes, Unknown):
        return not_tried(check, need, found.nodes.why)
    told = [node for node in found.nodes if node.status == "alive" and node.settings]
    ours = _pairs(settings.shared)
    others = [
        f"{node.node} has {' '.join(f'{name}={value}' for name, value in _differing(node, ours))}"
        for node in told
        if _differing(node, ours)
    ]
    if not others:
        return ok(check, need, settings.shared if told else "nobody to compare with")
    names = sorted({name for node in told for name, _ in _differing(node, ours)})
    here = " ".join(f"{name}={ours.get(name, 'unknown')}" for name in names)
    mend = "give all the same settings, and restart those that had others, one after the other"
    return warn(check, need, f"{_some(others)}; here {here}", mend)


def _differing(node: NodeState, ours: dict[str, str]) -> list[tuple[str, str]]:
    theirs = _pairs(node.settings or "")
    return [(name, theirs[name]) for name in sorted(theirs) if ours.get(name) != theirs[name]]


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def _some(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
