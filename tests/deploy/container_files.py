"""The files of deploy/container/, parsed, and the settings that they give a server."""

import json
import re
from typing import Any

import yaml

from presence.config.loader import load
from presence.config.settings import Settings
from tests.deploy.units import DEPLOY

FOLDER = DEPLOY / "container"
CONTAINERFILE = FOLDER.joinpath("Containerfile").read_text(encoding="utf-8").replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
MANIFESTS: dict[str, dict[str, Any]] = {
    each["kind"]: each
    for each in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SERVERS = ("presence-1", "presence-2")  # services of compose.yaml


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of this name in the Containerfile."""
    return re.findall(rf"^{name} (.+)$", CONTAINERFILE, re.MULTILINE)


def image_variables() -> dict[str, str]:
    """Return the settings that are in the image."""
    return dict(re.findall(r"\b(PRESENCE_\w+)=(\S+)", " ".join(instructions("ENV"))))


def compose_variables(service: str) -> dict[str, str]:
    """Return the settings of a server of compose.yaml."""
    return {**image_variables(), **COMPOSE["services"][service]["environment"]}


def pod_variables() -> dict[str, str]:
    """Return the settings of a pod; those from a Secret have an example."""
    examples = {"PRESENCE_REDIS": "redis://redis:6379"}
    return {
        **image_variables(),
        **{each["name"]: each.get("value") or examples[each["name"]] for each in CONTAINER["env"]},
    }


def settings(variables: dict[str, str]) -> Settings:
    """Return the settings that a server with these variables has.

    Raises:
        ConfigError: they are unknown, invalid or in conflict.
    """
    return load({}, variables).settings


def script(service: str) -> str:
    """Return the shell script that a service of compose.yaml runs."""
    (text,) = COMPOSE["services"][service]["command"]
    return str(text).replace("$$", "$")


def health_check() -> list[str]:
    """Return the command of the image's health check."""
    (line,) = instructions("HEALTHCHECK")
    command: list[str] = json.loads(line.partition(" CMD ")[2])
    return command
