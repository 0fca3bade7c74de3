"""The three sites over HTTP: what a visitor does is in the state, and nothing else is."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks import sites
from training.child import free_ports


@contextmanager
def visiting(name: str, folder: Path) -> Iterator[httpx.Client]:
    """The site of the task `name`, for a client that follows where it is sent."""
    sites.generate(folder)
    (port,) = free_ports(1)
    site = subprocess.Popen([sys.executable, str(state_path(name, folder).with_name("server.py")), str(port)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
            while True:
                try:
                    client.get("/")
                    break
                except httpx.TransportError:
                    assert site.poll() is None
                    time.sleep(0.02)
            yield client
    finally:
        site.kill()
        site.wait()


def state_path(name: str, folder: Path) -> Path:
    return folder / name / "environment/site/state.json"


def state(name: str, folder: Path) -> dict[str, Any]:
    return dict(json.loads(state_path(name, folder).read_text()))


def test_shop(tmp_path: Path) -> None:
    with visiting("shop-train", tmp_path) as client:
        assert "The cart is empty." in client.post("/order").text
        assert "Cart (1)" in client.post("/add", data={"item": "2"}).text
        assert "Teapot" in client.get("/cart").text
        assert state("shop-train", tmp_path)["done"] == []
        client.post("/order")
    after = state("shop-train", tmp_path)
    assert (after["done"], after["cart"]) == ([["Teapot"]], [])


def test_form(tmp_path: Path) -> None:
    with visiting("form-train", tmp_path) as client:
        answer = client.post("/register", data={"name": " ", "town": "Turin", "newsletter": "yes"})
        assert "Please fill in: name, plan." in answer.text
        assert state("form-train", tmp_path)["done"] == []
        client.post("/register", data={"name": "Ada <b>", "town": "Turin", "plan": "plus"})
    kept = {"name": "Ada <b>", "town": "Turin", "plan": "plus", "newsletter": False}
    assert state("form-train", tmp_path)["done"] == [kept]


def test_search(tmp_path: Path) -> None:
    with visiting("search-train", tmp_path) as client:
        assert "Type words" in client.get("/").text
        assert "0 found" in client.get("/", params={"q": 'ships "<b>'}).text
        found = client.get("/", params={"q": "Warns SHIPS"}).text
        assert "1 found" in found and "/article?id=4" in found
        assert "Lighthouses" in client.get("/article?id=4").text
        assert state("search-train", tmp_path)["done"] == []
        client.post("/keep", data={"id": "4"})
    assert state("search-train", tmp_path)["done"] == ["Lighthouses"]


@pytest.mark.parametrize(
    ("method", "path", "data", "status"),
    [
        ("GET", "/article?id=99", {}, 404),
        ("GET", "/article", {}, 404),
        ("POST", "/keep", {"id": "x"}, 400),
        ("POST", "/keep", {}, 400),
    ],
)
def test_what_is_not_there_is_said_and_changes_nothing(
    method: str, path: str, data: dict[str, str], status: int, tmp_path: Path
) -> None:
    with visiting("search-train", tmp_path) as client:
        before = state("search-train", tmp_path)
        assert client.request(method, path, data=data).status_code == status
        assert state("search-train", tmp_path) == before


def test_a_text_is_shown_as_text(tmp_path: Path) -> None:
    with visiting("search-train", tmp_path) as client:
        assert "<script>" not in client.get("/", params={"q": "<script>alert(1)</script>"}).text
