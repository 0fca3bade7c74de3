"""vLLM as policy engine: only its command line. It lives in a virtual environment of its own (`make engine-vllm`).

`processed_logprobs` are those after temperature, which are what was sampled from. The tokenizer stays out: the proxy
speaks token ids. `VLLM_SERVER_DEV_MODE` opens the reload endpoints, so the server must stay on loopback.
"""

import os
from pathlib import Path

from proxy_addons.errors import ConfigError
from training.engines import Launch

PYTHON = "OPENFORGE_VLLM_PYTHON"
_OWN = Path(__file__).resolve().parents[2] / ".venv-vllm" / "bin" / "python"


def python() -> Path | None:
    """The interpreter that has vLLM: $OPENFORGE_VLLM_PYTHON, else .venv-vllm; None if there is none."""
    path = Path(os.environ.get(PYTHON, _OWN))
    return path if path.exists() else None


def launch(model_dir: Path, port: int, max_model_len: int) -> Launch:
    """How to serve `model_dir`. Raises ConfigError if vLLM is not installed."""
    interpreter = python()
    if interpreter is None:
        raise ConfigError(f"engine: vllm is not installed; run `make engine-vllm` or set {PYTHON} to its python")
    argv = (
        # When we die the server must get a signal that it can pass on: its engine processes outlive a SIGKILL of it.
        *("setpriv", "--pdeathsig", "TERM"),
        *(str(interpreter), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_dir), "--served-model-name", "policy"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(max_model_len), "--max-num-seqs", "16"),
        # A seeded request whose prompt is computed in parts ends the engine of 0.32 on a CPU, so: whole prompts only.
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(max_model_len, 2048))),
        *("--dtype", "float32", "--enforce-eager", "--skip-tokenizer-init"),
        *("--enable-scale-out", "--enable-prompt-tokens-details", "--logprobs-mode", "processed_logprobs"),
    )
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    return Launch(argv, env, start_s=300.0)
