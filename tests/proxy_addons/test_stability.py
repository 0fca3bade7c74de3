"""What a template does to a conversation that grows, by renderer, and that the proxy tells it."""

from pathlib import Path

import pytest

from proxy_addons.rendering import load_rendering
from proxy_addons.stability import TURNS
from proxy_addons.stability import describe
from proxy_addons.stability import measure
from tests.support.recording import recording
from tests.support.toy_model import make_plain_model
from tests.support.toy_model import make_seeing_model
from tests.support.toy_model import make_toy_model

KEEPS_ALL = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Says how many turns there were, at the front: nothing ever stays.
COUNTS = "{{ messages | length }}" + KEEPS_ALL

ONE_SYSTEM = """{% if messages[1:] | selectattr('role', 'equalto', 'system') | list %}
{{ raise_exception('one') }}{% endif %}"""

DROPS_SYSTEM = KEEPS_ALL.replace(
    "{% for m in messages %}", "{% for m in messages if m.role != 'system' or loop.first %}"
).replace("loop.first", "m == messages[0]")


async def test_reasoning_kept_is_one_row_for_every_kind_of_turn(toy_model: Path) -> None:
    turns = await measure(load_rendering(toy_model))
    assert {what.split("_as_")[0] for what in turns.values()} == {"one_row"}


async def test_reasoning_dropped_at_a_user_turn_is_a_new_row(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path)
    (folder / "renderer.json").unlink()
    turns = await measure(load_rendering(folder))
    assert turns["tool_loop_after_reasoning"] == "one_row"
    assert {what for name, what in turns.items() if name.startswith("new_user_turn")} == {"new_row"}


@pytest.mark.parametrize(
    ("template", "late", "others"),
    [
        (KEEPS_ALL, "one_row", "one_row"),
        (COUNTS, "new_row", "new_row"),
        (ONE_SYSTEM + KEEPS_ALL, "refused", "one_row"),
        (DROPS_SYSTEM, "text_lost", "one_row"),
    ],
)
async def test_an_unknown_template_is_measured(tmp_path: Path, template: str, late: str, others: str) -> None:
    described = await describe(load_rendering(make_plain_model(tmp_path, template)))
    assert described["renderer"] == "DefaultRenderer"
    assert described["turns"] == {**dict.fromkeys(TURNS, others), "late_system_message": late}
    assert (described["reads_tool_calls"], described["control_tokens_in_text"]) == (False, "refused")


async def test_a_policy_that_sees_hears_every_system_message(tmp_path: Path) -> None:
    described = await describe(load_rendering(make_seeing_model(tmp_path)))
    assert described["sees_images"]
    assert set(described["turns"].values()) == {"one_row"}


async def test_the_control_port_tells(toy_model: Path, tmp_path: Path) -> None:
    async with recording(toy_model, "http://127.0.0.1:1", tmp_path) as proxy:
        answer = await proxy.control.get("/rendering")
    assert answer.json() == await describe(load_rendering(toy_model)) | {"model": str(toy_model.absolute())}
