"""docs/kubernetes.md: what it has one type is taken, and what it names is there."""

import json
import re

from flows.config import KubernetesConfig
from flows.config import load_config
from tasks.run import ROOT
from tests.deploy.manifests import base
from tests.deploy.manifests import rendered

TEXT = (ROOT / "docs" / "kubernetes.md").read_text()


def test_the_configurations_are_taken() -> None:
    given = [json.loads(found) for found in re.findall(r"'config=(\{.*?\})'", TEXT, re.S)]
    assert len(given) == 2
    for config in map(load_config, given):
        assert (config.profile, config.model, config.runs_dir) == ("kubernetes", "/runs/models/base", "/runs")


def test_the_files_are_there() -> None:
    named = set(re.findall(r"(?<![/\w])((?:deploy|tasks|flows|tests|docs)/[\w./-]+\w)", TEXT))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_objects_are_there() -> None:
    names = {item["metadata"]["name"] for item in base()}
    for kind, name in re.findall(r"(service|statefulset|deployment)/([\w-]+)", TEXT):
        assert name in names, f"{kind}/{name}"
    secrets = re.findall(r"create secret generic (\S+) (?:\\\n\s+)?--from-literal=(\w+)=", TEXT)
    used = str(rendered("kind"))
    assert len(secrets) == 2
    assert all(f"'key': '{key}', 'name': '{name}'" in used for name, key in secrets)


def test_every_field_that_a_cluster_adds_is_told() -> None:
    table = TEXT.split("## What you give")[1].split("\n## ")[0]
    told = set(re.findall(r"`(\w+)`", table))
    assert [name for name in KubernetesConfig.model_fields if name not in told] == []
