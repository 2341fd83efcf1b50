"""Image, Compose file and manifests agree with the server, and with the files that they mount."""

import re
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import yaml

from presence.admin.app import endpoints
from presence.admin.handlers import Handlers
from presence.admin.launcher import STOP_TIMEOUT_S
from presence.admin.page_files import PageFiles
from presence.config.loader import ConfigError
from presence.config.settings import QUICK_START_WS_PORT, Settings, admin_port
from presence.prefork.arbiter import STOP_MARGIN_S
from tests.deploy.container_files import (
    COMPOSE,
    CONTAINER,
    FOLDER,
    MANIFESTS,
    POD,
    SERVERS,
    compose_variables,
    health_check,
    image_variables,
    instructions,
    pod_variables,
    script,
    settings,
)

ROOT = FOLDER.parents[1]
SERVICES = COMPOSE["services"]
STOP_S = Settings().drain_timeout + STOP_MARGIN_S + STOP_TIMEOUT_S


def test_the_image_serves_nobody_until_it_is_decided_who_may_log_in() -> None:
    with pytest.raises(ConfigError, match="set token_keys, or --insecure"):
        settings(image_variables())
    assert settings({**image_variables(), "PRESENCE_INSECURE": "true"}).host == "0.0.0.0"


def test_the_servers_of_compose_and_kubernetes_have_valid_settings_and_ask_for_tokens() -> None:
    for variables in (*map(compose_variables, SERVERS), pod_variables()):
        found = settings(variables)
        assert found.redis
        assert found.token_keys
        assert found.admin_tokens


def test_the_ports_are_those_of_the_server() -> None:
    ours = Settings()
    (exposed,) = instructions("EXPOSE")
    assert set(map(int, exposed.split())) == {
        ours.port,
        QUICK_START_WS_PORT,
        ours.tls_port,
        admin_port(ours.admin),
    }
    pod = settings(pod_variables())
    named = {each["name"]: each["containerPort"] for each in CONTAINER["ports"]}
    assert named == {"clients": pod.port, "operators": admin_port(pod.admin)}
    policy = MANIFESTS["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for rule in policy for port in rule["ports"]] == list(named)
    (port,) = MANIFESTS["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (pod.port, "clients")


def test_probes_ask_endpoints_that_need_no_token() -> None:
    handlers = create_autospec(Handlers, instance=True)
    is_open = {
        each.template
        for each in endpoints(handlers, create_autospec(PageFiles, instance=True))
        if not each.need
    }
    probes = {name: CONTAINER[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {
        "readinessProbe": {"path": "/readyz", "port": "operators"},
        "livenessProbe": {"path": "/healthz", "port": "operators"},
    }
    assert {"/readyz", "/healthz"} <= is_open
    assert f"'127.0.0.1', {admin_port(Settings().admin)}" in health_check()[-1]
    assert "'/healthz'" in health_check()[-1]


def test_a_stop_may_take_as_long_as_the_server() -> None:
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    for name in SERVERS:
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > STOP_S
        assert settings(compose_variables(name)).drain_timeout == Settings().drain_timeout
    pause_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] > pause_s + STOP_S
    assert settings(pod_variables()).drain_timeout == Settings().drain_timeout


def test_everything_runs_as_the_user_of_the_image_who_owns_the_working_directory() -> None:
    (user,) = instructions("USER")
    number, _, group = user.partition(":")
    (made,) = (line for line in instructions("RUN") if line.startswith("install "))
    owned = made.removeprefix(f"install -d -o {number} -g {group} ").split()
    assert instructions("WORKDIR")[-1] in owned
    ours = [each for each in SERVICES.values() if each.get("image") == "presence"]
    mounted = {path for each in ours for path in (mount.split(":")[1] for mount in each["volumes"])}
    assert mounted <= set(owned), "the user could not write into a new volume elsewhere"
    context = POD["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(number)} == {int(group)}


def test_the_files_that_are_copied_and_mounted_exist() -> None:
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert all((ROOT / each).exists() for each in copied)
    ignored = (FOLDER / "Containerfile.dockerignore").read_text(encoding="utf-8")
    assert set(re.findall("^!(.+)$", ignored, re.MULTILINE)) == set(copied)
    build = SERVICES[SERVERS[0]]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    mounted = [each.split(":") for service in SERVICES.values() for each in service.get("volumes", ())]
    assert all((FOLDER / source).is_file() for source, *_ in mounted if source.startswith("."))
    assert {source for source, *_ in mounted if not source.startswith(".")} == COMPOSE["volumes"].keys()


def test_no_process_that_clients_reach_has_the_private_key() -> None:
    def volumes(name: str) -> set[str]:
        return {each.split(":")[0] for each in SERVICES[name]["volumes"]}

    made_in = re.search(r"--append-to (\S+)/issuer\.json", script("credentials"))
    assert made_in
    (private,) = (
        source
        for source, path, *_ in (each.split(":") for each in SERVICES["credentials"]["volumes"])
        if path == made_in[1]
    )
    assert {name for name in SERVICES if private in volumes(name)} == {"credentials", "issuer"}
    assert SERVICES["issuer"]["network_mode"] == SERVICES["credentials"]["network_mode"] == "none"


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert COMPOSE["networks"]["redis"]["internal"]
    assert SERVICES["valkey"]["networks"] == ["redis"]


def test_the_proxy_of_compose_is_the_one_that_servers_trust() -> None:
    addresses = {
        name: SERVICES[name]["networks"]["default"]["ipv4_address"] for name in (*SERVERS, "haproxy")
    }
    for name in SERVERS:
        assert settings(compose_variables(name)).proxy_from == addresses["haproxy"]
    shared = (FOLDER.parent / "haproxy" / "presence.cfg").read_text(encoding="utf-8")
    ours = {each.replace("10.0.0.", "10.74.0.") for each in re.findall(r"10\.0\.0\.\d+", shared)}
    assert "'s/10\\.0\\.0\\./10.74.0./g'" in script("haproxy")
    assert ours - {*addresses.values()} == {"10.74.0.3"}, "its second address, which is left out"


def test_prometheus_scrapes_the_servers_with_a_token_and_has_the_alerts() -> None:
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    port = admin_port(settings(compose_variables(SERVERS[0])).admin)
    assert job["job_name"] == "presence"
    assert job["static_configs"] == [{"targets": [f"{name}:{port}" for name in SERVERS]}]
    mounts = dict(each.split(":")[:2] for each in SERVICES["prometheus"]["volumes"])
    secret = Path(job["authorization"]["credentials_file"])
    assert str(secret.parent) == mounts["credentials"]
    assert f"> {secret.name}" in script("credentials")
    folder = Path(mounts["./prometheus.yml"]).parent
    assert [str(folder / name) for name in scraped["rule_files"]] == [mounts["../prometheus/alerts.yml"]]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    mounts = dict(each.split(":")[:2] for each in SERVICES["grafana"]["volumes"])
    files = {
        name: yaml.safe_load((FOLDER / "grafana" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in ("datasource", "dashboards")
    }
    (source,) = files["datasource"]["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = files["dashboards"]["providers"]
    assert provider["options"]["path"] == str(Path(mounts["../grafana/presence.json"]).parent)


def test_files_of_a_pod_come_from_secrets_that_only_its_group_may_read() -> None:
    paths = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    keys = {"tls": ["tls.crt", "tls.key"]}  # of every Secret of the type kubernetes.io/tls
    mounted = set()
    for volume in (each for each in POD["volumes"] if "secret" in each):
        assert volume["secret"]["defaultMode"] == 0o440
        names = keys.get(volume["name"]) or [each["path"] for each in volume["secret"]["items"]]
        mounted |= {Path(paths[volume["name"]], name) for name in names}
    found = settings(pod_variables())
    assert {Path(found.token_keys or ""), found.admin_tokens, found.tls_cert, found.tls_key} == mounted


def test_a_server_on_read_only_files_can_write_where_commands_look_for_it() -> None:
    assert SERVICES[SERVERS[0]]["read_only"]
    assert all(SERVICES[name]["tmpfs"] == ["/tmp"] for name in SERVERS)
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    (mounted,) = (each for each in CONTAINER["volumeMounts"] if each["mountPath"] == "/tmp")
    (volume,) = (each for each in POD["volumes"] if each["name"] == mounted["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


def test_all_selectors_are_the_labels_of_the_pod() -> None:
    specs = {kind: each["spec"] for kind, each in MANIFESTS.items()}
    labels = specs["Deployment"]["template"]["metadata"]["labels"]
    (spread,) = POD["topologySpreadConstraints"]
    assert specs["Service"]["selector"] == labels
    selectors = (
        specs["Deployment"]["selector"],
        specs["PodDisruptionBudget"]["selector"],
        specs["NetworkPolicy"]["podSelector"],
        spread["labelSelector"],
    )
    assert all(each == {"matchLabels": labels} for each in selectors)
