"""The Dockerfiles cannot be built here, so they are read: every source is there, and nothing else is installed."""

import re
import shlex
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from tasks import harnesses
from tasks.run import ROOT
from tests.deploy.manifests import base
from tests.deploy.manifests import settings_data

IMAGES = ROOT / "deploy" / "images"
FILES = sorted(IMAGES.glob("*.Dockerfile"))
IGNORED = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def steps(file: Path) -> list[tuple[str, str]]:
    """(instruction, value) in order."""
    parser = DockerfileParser(fileobj=file.open("rb"))
    return [(step["instruction"], step["value"]) for step in parser.structure]


def copies(file: Path) -> list[tuple[str | None, list[str], str]]:
    """(stage it comes from, sources, destination) of every COPY."""
    found: list[tuple[str | None, list[str], str]] = []
    for instruction, value in steps(file):
        if instruction == "COPY":
            words = shlex.split(value)
            flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
            *sources, destination = [word for word in words if not word.startswith("--")]
            found.append((flags.get("from"), sources, destination))
    return found


def stages(file: Path) -> dict[str, str]:
    """Stage (or its number) → the image it starts from."""
    found: dict[str, str] = {}
    for value in (value for instruction, value in steps(file) if instruction == "FROM"):
        image, *name = re.split(r"\s+as\s+", value, flags=re.I)
        found[name[0] if name else str(len(found))] = image
    return found


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_there_are_all_four() -> None:
    assert [file.stem for file in FILES] == ["harnesses", "proxy", "sidecar", "trainer"]


def test_what_is_copied_is_there_and_not_ignored(file: Path) -> None:
    for stage, sources, _ in copies(file):
        if stage is not None:
            assert stage in stages(file)
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert Path(source).parts[0] not in IGNORED


def test_base_images_are_pinned_and_nameless(file: Path) -> None:
    for image in stages(file).values():
        assert re.fullmatch(r"[a-z]+:[\w.-]+", image) and not image.endswith(":latest"), image
    assert not re.search(r"https?://|--(extra-)?index-url|--registry", file.read_text())


def test_nothing_runs_as_root(file: Path) -> None:
    """Each stage that becomes an image ends with the user of the pods."""
    users: dict[int, str] = {}
    number = -1
    for instruction, value in steps(file):
        number += instruction == "FROM"
        if instruction == "USER":
            users[number] = value
    final = [n for n, name in enumerate(stages(file)) if name != "install"]
    assert {n: users.get(n) for n in final} == dict.fromkeys(final, "1000:1000")


def test_the_proxy_installs_what_the_makefile_names() -> None:
    makefile = (ROOT / "Makefile").read_text()
    wanted = re.search(r"^PROXY_PACKAGES := (.*)$", makefile, re.M)
    assert wanted
    (command,) = [value for step, value in steps(IMAGES / "proxy.Dockerfile") if step == "RUN"]
    words = shlex.split(command)
    assert words[:3] == ["pip", "install", "--no-cache-dir"]
    assert words[words.index("constraints.txt") + 1 :] == wanted[1].split()
    assert [sources for _, sources, _ in copies(IMAGES / "proxy.Dockerfile")] == [["constraints.txt"], ["proxy_addons"]]


def test_the_trainer_has_every_room_and_the_makefiles_torch() -> None:
    sources = [source for _, sources, _ in copies(IMAGES / "trainer.Dockerfile") for source in sources]
    assert {"flows", "tasks", "training", "proxy_addons", "models", "deploy/harnesses"} <= set(sources)
    (torch,) = re.findall(r'"(torch==[0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    assert ("ARG", f"TORCH={torch}") in steps(IMAGES / "trainer.Dockerfile")
    # The harnesses come from their own images, and say there what they are.
    assert not any(stage for stage, _, _ in copies(IMAGES / "trainer.Dockerfile"))


def test_payloads_hold_the_harness_where_a_sandbox_has_it() -> None:
    """And only harnesses: the doctor and the init container copy what lies there."""
    named = {key.removeprefix("payload.") for key in settings_data(base()) if key.startswith("payload.")}
    file = IMAGES / "harnesses.Dockerfile"
    held = {destination for stage, _, destination in copies(file) if stage}
    installed = ROOT / harnesses.INSTALL
    assert held == {path for name in named for path in harnesses.load(name).binds(installed)}
    assert held == {path for name in named for path in harnesses.load(name).IMAGE_PATHS}
    assert {name.replace("_", "-") for name in named} == stages(file).keys() - {"install"}
