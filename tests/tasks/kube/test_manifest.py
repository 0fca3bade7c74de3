"""What a Job is, checked as a cluster would check it."""

import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio import client

from proxy_addons.errors import ConfigError
from tasks.kube import manifest
from tests.tasks.kube.support import settings
from tests.tasks.kube.support import spec

DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@given(st.text(alphabet=string.ascii_letters + string.digits + "-_./ü", min_size=1, max_size=120))
def test_names_are_dns_names_and_deterministic(name: str) -> None:
    made = manifest.object_name(name)
    assert DNS.fullmatch(made) and len(made) <= 63
    assert made == manifest.object_name(name)


@given(st.text(alphabet=string.ascii_lowercase + "-", min_size=60, max_size=90), st.integers(0, 99))
def test_long_names_stay_apart(name: str, number: int) -> None:
    assert manifest.object_name(f"{name}-t{number}") != manifest.object_name(f"{name}-t{number + 1}")


def test_a_short_name_is_kept() -> None:
    assert manifest.object_name("night-e001-sum-s00-t0") == "night-e001-sum-s00-t0"


def test_no_run_no_selector() -> None:
    with pytest.raises(ValueError, match="selected by its name, and it is empty"):
        manifest.selector("")


def test_the_job_is_what_the_client_knows(tmp_path: Path) -> None:
    one = manifest.job(settings(service_account="rollout", runtime_class="gvisor"), spec(tmp_path), "mark")
    job: Any = client.V1Job.model_validate(one)
    pod = job.spec.template.spec  # unknown fields and wrong types are refused
    assert (pod.runtime_class_name, pod.service_account_name) == ("gvisor", "rollout")
    assert json.loads(json.dumps(one)) == one


def test_what_holds_an_agent_in(tmp_path: Path) -> None:
    one = spec(tmp_path, memory_mb=512, cpus=0.5, wall_s=100)
    job = manifest.job(settings(), one, "mark")["spec"]
    pod = job["template"]["spec"]
    assert (job["backoffLimit"], job["activeDeadlineSeconds"]) == (0, 100 + manifest.PULL_S + manifest.UPLOAD_S)
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    agent, sidecar = pod["containers"]
    assert agent["resources"]["limits"] == {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "4Gi"}
    mounts = {mount["mountPath"]: mount for mount in agent["volumeMounts"]}
    assert mounts["/run/openforge"]["readOnly"] and mounts["/opt/claude-code"]["readOnly"]
    assert manifest.KEY not in mounts, "the agent cannot read its pod's key"
    assert manifest.KEY in {mount["mountPath"] for mount in sidecar["volumeMounts"]}


def test_a_harness_without_an_image_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kubernetes\.images: no image is named for the harness codex"):
        manifest.job(settings(), spec(tmp_path, payload="codex"), "mark")


def test_who_it_is(tmp_path: Path) -> None:
    labels = manifest.job(settings(), spec(tmp_path, try_=2), "mark")["spec"]["template"]["metadata"]["labels"]
    assert {key.removeprefix("openforge/"): value for key, value in labels.items() if key.startswith("openforge/")} == {
        "run": "night",
        "role": "rollout",
        "group": "night-e001-sum",
        "rollout": "night-e001-sum-s00-t2",
        "try": "2",
    }
    assert manifest.selector("night") == "app.kubernetes.io/managed-by=openforge,openforge/run=night"


def test_a_folder_bound_twice_is_one_volume(tmp_path: Path) -> None:
    one = spec(tmp_path, payload=None, binds_ro={"/tests": tmp_path / "t"}, binds_rw={"/a": tmp_path, "/b": tmp_path})
    pod = manifest.job(settings(), one, "mark")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["control", "workspace", "home", "tmp", "ro0", "rw0", "key"]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/a"] == mounts["/b"] == "rw0"
    assert json.loads(manifest.sidecar_config(settings(), one))["results"] == ["workspace", "rw0"]


def test_a_later_try_has_its_own_priority_where_there_is_one(tmp_path: Path) -> None:
    def priorities(**fields: Any) -> list[str | None]:
        tries = (spec(tmp_path), spec(tmp_path, try_=1), spec(tmp_path, rollout=None, payload=None, binds_ro={}))
        jobs = [manifest.job(settings(**fields), one, "mark") for one in tries]
        return [job["spec"]["template"]["spec"].get("priorityClassName") for job in jobs]

    assert priorities(priority_class="first", retry_priority_class="again") == ["first", "again", "first"]
    assert priorities(priority_class="first") == ["first"] * 3
    assert priorities() == [None] * 3
