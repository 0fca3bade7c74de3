import json
from pathlib import Path

import httpx
import pytest
from transformers import AutoTokenizer

from proxy_addons.errors import InfrastructureError
from tasks.run import MODELS
from tasks.stand_in import running
from tasks.stand_in import script

pytestmark = pytest.mark.timeout(60)

PARAMETERS = {"properties": {"command": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "Bash", "description": "", "parameters": PARAMETERS}}
PROMPT = (
    f"<|im_start|>system\n<tools>\n{json.dumps(TOOL)}\n</tools><|im_end|>\n"
    "<|im_start|>user\nRun docs/amber.sh until it works.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize(("name", "said"), [("teacher", "sh docs/amber.sh"), ("guesser", "> answer.txt")])
async def test_a_script_answers_by_token_ids_and_is_gone_after_the_block(name: str, said: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(MODELS / "tiny"), local_files_only=True)
    async with script(name)(MODELS / "tiny", tmp_path / "log") as url, httpx.AsyncClient() as client:
        ids = tokenizer.encode(PROMPT, add_special_tokens=False)
        answer = (await client.post(f"{url}/inference/v1/generate", json={"token_ids": ids})).json()
        choice = answer["choices"][0]
        assert said in tokenizer.decode(choice["token_ids"])
        assert choice["logprob_kind"] == "scripted"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


async def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"did not come up: .*no such thing"):
        async with running(["sh", "-c", "echo no such thing; exit 1"], MODELS / "tiny", tmp_path / "log"):
            raise AssertionError
