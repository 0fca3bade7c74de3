"""A real cluster, where the developer has one: KUBECONFIG leads to it, and OPENFORGE_TEST_CLUSTER names a file with a
run's configuration for it (JSON; profile kubernetes)."""

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from flows.cluster import settings
from flows.config import load_config
from tasks.kube.settings import Settings
from tasks.proxies import TOKEN

NAMED = "OPENFORGE_TEST_CLUSTER"


def given_cluster() -> Settings:
    """Its settings, or skip the test."""
    if NAMED not in os.environ:
        pytest.skip(f"{NAMED} names no configuration of a cluster (docs/kubernetes.md)")
    config = load_config({"profile": "kubernetes", **json.loads(Path(os.environ[NAMED]).read_text())})
    with patch.dict(os.environ, {TOKEN: "no proxy is asked"}):
        return settings(config, "openforge-test", (), ())
