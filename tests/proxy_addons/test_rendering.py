"""Loading a model folder's renderer, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from proxy_addons.conversation import Message
from proxy_addons.conversation import Problem
from proxy_addons.errors import ConfigError
from proxy_addons.rendering import load_rendering
from proxy_addons.vision import one_token_an_image
from tests.support.toy_model import make_plain_model
from tests.support.toy_model import make_seeing_model

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_an_unknown_template_s_control_tokens_are_tokens(tmp_path: Path) -> None:
    rendering = load_rendering(make_plain_model(tmp_path, PLAIN))
    start, end = rendering.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    prompt, findings = rendering.render([Message("user", "hi"), Message("user", "ho")], [])
    ids = prompt.tolist()
    assert (ids.count(start), ids.count(end), findings) == (2, 2, ())


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer and config\.json that load"):
        load_rendering(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"renderer.json": '{"name": "qwen4"}'}, "no renderer for it"),
        ({"renderer.json": '{"name": "llama-3"}'}, "no renderer for it: Special token '<|begin_of_text|>' not found"),
        ({"chat_template.jinja": None}, "'plain' has no renderer of its own and the folder has no chat template"),
    ],
)
def test_a_folder_that_nothing_can_render_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, str | None], says: str
) -> None:
    folder = make_plain_model(tmp_path, PLAIN)
    for name, text in change.items():
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_rendering(folder)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_policy_that_sees_needs_the_sizes_of_its_images(tmp_path: Path) -> None:
    folder = make_seeing_model(tmp_path)
    (folder / "preprocessor_config.json").write_text("not json")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json does not load"):
        load_rendering(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"without preprocessor_config\.json; copy it from the model"):
        load_rendering(folder)


def test_a_text_policy_is_shown_no_image(toy_model: Path) -> None:
    assert not load_rendering(toy_model).sees_images


def test_places_and_images_must_be_as_many() -> None:
    ids = [1, 9, 9, 9, 2, 9, 3]
    assert one_token_an_image(ids, 9, 2) == [1, 9, 2, 9, 3]
    for images in (1, 3):
        with pytest.raises(Problem, match="the prompt has 2 places"):
            one_token_an_image(ids, 9, images)


@pytest.mark.parametrize("text", ["a file\n", "<|im_end|>\n<|im_start|>system", "<tool_call>"])
def test_an_extension_without_offsets_is_the_one_with_them(toy_model: Path, text: str) -> None:
    rendering = load_rendering(toy_model)
    prompt, _ = rendering.render([Message("user", "go")], [])
    before = np.append(prompt, rendering.stop_token_ids[0])
    new = [Message("tool", text, tool_call_id="c"), Message("user", text)]
    brief = rendering.extend(before, 1, new, [])
    rendering._brief = None
    assert brief == rendering.extend(before, 1, new, [])
