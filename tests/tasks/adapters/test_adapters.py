"""The registry: how a set is spelled, which of its tasks are loaded, and what is said of the others."""

import logging
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.identity import check_name
from tasks import adapters
from tasks import run
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import claweval
from tasks.adapters import webvoyager
from tasks.adapters.sides import divided
from tasks.provider import Provider
from tests.tasks.adapters import checkout


def item(name: str, *needs: Need) -> Item:
    return Item(name, "do it", "x", needs, webvoyager.Question(id=name, web_name="x", ques="q", web="w"))


def test_every_name_is_a_module_that_offers_what_it_should() -> None:
    for name in adapters.NAMES:
        adapter = adapters.get(name)
        assert name == adapter.NAME
        assert adapter.ABOUT
        assert adapter.GIVE
        assert callable(adapter.read)


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task set 'clawbench': no such benchmark; use one of claweval, "):
        adapters.split(f"clawbench:{tmp_path}")


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere is not there; give a checkout"):
        adapters.split("claweval:/nowhere")


@pytest.mark.parametrize("source", ["/data/tasks", "tasks", "./a:b/c", "C/x:y"])
def test_a_plain_folder_is_no_benchmark(source: str) -> None:
    assert adapters.split(source) is None


@pytest.mark.parametrize("text", ["T001zh_email_triage", "Google Map--12", "x" * 90, "数学", "0-a-" * 12])
def test_an_id_can_be_part_of_a_rollouts(text: str) -> None:
    assert check_name("task", adapters.task_id(text))


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert adapters.task_id("x" * 60 + "a") != adapters.task_id("x" * 60 + "b")


def test_two_tasks_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="task a: the set has two tasks of that name"):
        adapters.unique([item("a"), item("a")])


def test_what_is_missing_is_counted_in_tasks() -> None:
    site, judge = Need("site", "a.example", "live"), Need("judge", "", "name one")
    items = [item("a", site, judge, Need("program", "sh")), item("b", Need("site", "b.example", "live"))]
    assert adapters.lacking(items) == [
        ("site a.example and 1 more (2 tasks)", "live"),
        ("judge (1 task)", "name one"),
    ]


def test_a_set_of_which_nothing_runs_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "WebVoyager_data.jsonl").write_text(
        '{"web_name": "Shop", "id": "Shop--0", "ques": "How much is it?", "web": "https://shop.example/"}\n'
    )
    with pytest.raises(ConfigError) as caught:
        run.load_tasks(f"webvoyager:{tmp_path}")
    first, *others = str(caught.value).splitlines()
    assert first.endswith("none of its 1 tasks can run here")
    assert any("browser (1 task): no harness here drives one" in line for line in others)


def test_what_runs_is_loaded_and_the_rest_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = f"claweval:{checkout.make(tmp_path / 'checkout')}"
    with caplog.at_level(logging.WARNING):
        (task,) = adapters.load(source, tmp_path / "cache")
    assert task.id == "t1-find-twice-paid"
    assert task.beside
    assert task.split == "heldout"
    assert "1 of 2 tasks can run here; missing: judge (1 task)" in caplog.text
    before = sorted((tmp_path / "cache").iterdir())
    assert adapters.load(source, tmp_path / "cache")[0].digest == task.digest
    assert sorted((tmp_path / "cache").iterdir()) == before


def test_with_a_judge_in_the_run_its_tasks_are_loaded_too(tmp_path: Path) -> None:
    source = f"claweval:{checkout.make(tmp_path / 'checkout')}"
    judge = Provider(base_url="http://127.0.0.1:1/v1", model="strict")
    assert [task.id for task in run.load_tasks(source, judge)] == ["t1-find-twice-paid", "t2-judged"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"api": "anthropic"}, "by the API openai and not anthropic"),
        ({"sampled_usd": 1.0, "max_usd": 5.0}, "max_usd cannot be kept"),
    ],
)
def test_a_judge_that_the_graders_cannot_ask_is_refused(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    judge = Provider.model_validate({"base_url": "http://127.0.0.1:1/v1", "model": "strict"} | fields)
    with pytest.raises(ConfigError, match=said):
        adapters.load(f"claweval:{checkout.make(tmp_path / 'checkout')}", tmp_path / "cache", judge)


def test_tools_in_another_way_are_of_a_set_that_has_tools(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark.tools: webvoyager has no tools to give in another way"):
        run.load_tasks(f"webvoyager:{tmp_path}", None, adapters.Choices(tools="mcp"))


def test_what_may_be_trained_on_is_loaded_so(tmp_path: Path) -> None:
    source, judge = f"claweval:{checkout.make(tmp_path / 'checkout')}", Provider(base_url="http://a.example", model="m")
    for share in (0.0, 0.3, 0.7, 0.99):
        wanted = [item.split for item in divided(claweval.read(tmp_path / "checkout"), share)]
        tasks = adapters.load(source, tmp_path / "cache", judge, adapters.Choices(train_share=share))
        assert [task.split for task in tasks] == wanted
    assert "train" in wanted


def test_a_grader_that_changed_makes_another_task(tmp_path: Path) -> None:
    folder = checkout.make(tmp_path / "checkout")
    before = adapters.load(f"claweval:{folder}", tmp_path / "cache")[0]
    with (folder / "tasks/T1_find_twice_paid/grader.py").open("a") as file:
        file.write("# stricter\n")
    after = adapters.load(f"claweval:{folder}", tmp_path / "cache")[0]
    assert before.digest != after.digest
    assert before.folder.is_dir()  # a run that has it goes on
