"""Continuous batching: one thread that owns the model and steps all running requests together.

A request enters between two steps and computes its prompt in chunks while the others go on decoding, so nobody waits
for a long prompt. One prompt is computed at a time: requests of a group arrive together with the same system prompt,
and so all but the first find it in the cache.

Why not transformers' own continuous batching (5.10): all its requests draw from one random stream, so that a seed
means nothing; it cannot forget old keys at a reload; and on a CPU its attention masks one row of everybody's keys, so
that each token pays for the contexts of all (8 requests of 2,000 tokens: 40 tokens/s, here 600 and more).
"""

import copy
import os
import queue
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers import GenerationConfig
from transformers import PretrainedConfig
from transformers import PreTrainedModel

from proxy_addons.errors import ConfigError
from training.engines._http import Generated
from training.engines._http import Params
from training.engines._kv import ATTENTION
from training.engines._kv import PrefixCache
from training.engines._kv import Sequence
from training.engines._kv import Span
from training.engines._kv import attend
from training.engines._loading import load_float32
from training.engines._sampling import sample

AttentionInterface.register(ATTENTION, attend)

PREFILL_CHUNK = 512
MAX_RUNNING = 16
"""Requests decoded together, where nothing else is said."""
CACHE_TOKENS = 262_144
"""Tokens kept for prefix reuse, where nothing else is said."""


@dataclass(eq=False)
class Generation:
    """A request under way. Any thread may set `abandoned`; the rest belongs to the decoder's thread."""

    prompt: np.ndarray
    params: Params
    future: "Future[Generated]" = field(default_factory=Future)
    abandoned: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    weights: int = 0
    sequence: Sequence = field(init=False)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.params.seed)
        self.future.set_running_or_notify_cancel()  # from here on nobody can cancel it under the decoder

    def owed(self) -> np.ndarray:
        """Known tokens whose keys and values are not computed yet: the rest of the prompt, or the last sampled one."""
        done = self.sequence.length
        return self.prompt[done:] if done < len(self.prompt) else np.array(self.token_ids[-1:], np.int32)

    def finish(self) -> str | None:
        if self.token_ids and self.token_ids[-1] in self.params.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) == self.params.max_tokens else None

    def result(self, finish: str) -> Generated:
        return Generated(self.token_ids, self.logprobs, self.versions, finish, self.cached_tokens)


def load_model(folder: Path, device: str) -> PreTrainedModel:
    """The folder's causal language model in float32. Raises ConfigError if it is not whole or not servable here."""
    loaded: Any
    try:
        loaded = load_float32(folder, attn_implementation=ATTENTION, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{folder}: not a model folder that transformers can load: {error}") from error
    model, info = loaded
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise ConfigError(f"{folder}: weights are missing or have the wrong shape: {', '.join(absent[:5])}")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(f"{folder}: the embedded engine serves full attention only, not {', '.join(sorted(kinds))}")
    return model.to(device).eval()


def stop_tokens(folder: Path, config: PretrainedConfig) -> frozenset[int]:
    """The ids that end a reply by the folder's own account; a request adds its own (vLLM does the same)."""
    try:
        eos = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    except OSError:
        eos = config.eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


class Decoder:
    """The thread and its state. Other threads talk to it through `submit` and `call` only."""

    def __init__(self, folder: Path, device: str, max_running: int, cache_tokens: int) -> None:
        self.version = "0"
        self._device = device
        self._max_running = max_running
        self._cache = PrefixCache(self._new_sequence, cache_tokens)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._paused = False
        self._weights = 0
        self._use(folder, load_model(folder, device))
        threading.Thread(target=self._loop, name="decoder", daemon=True).start()

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def paused(self) -> bool:
        return self._paused

    def submit(self, generation: Generation) -> None:
        """Queue a request; its future gets the result."""
        self._inbox.put(lambda: self._waiting.append(generation))

    def pause(self, abort: bool) -> "Future[None]":
        """Start no request until `resume`; with `abort`, also end all there are with what they have."""
        return self._call(lambda: self._pause(abort))

    def resume(self) -> "Future[None]":
        return self._call(lambda: setattr(self, "_paused", False))

    def set_version(self, version: str) -> "Future[None]":
        return self._call(lambda: setattr(self, "version", version))

    def forget_prefixes(self) -> "Future[None]":
        return self._call(self._cache.clear)

    def reload(self, folder: Path) -> None:
        """Load the folder beside the served weights, then swap between two steps. Raises ConfigError and changes
        nothing if the folder is bad."""
        model = load_model(folder, self._device)
        self._call(lambda: self._use(folder, model)).result()

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """As `reload`, with weights by their names in the folder's files. Raises ConfigError if they are not all."""
        model = copy.deepcopy(self._model)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ConfigError(f"these are not the weights of {self._folder}: {error}") from error
        self._call(lambda: self._use(self._folder, model)).result()

    def _call(self, act: Callable[[], Any]) -> "Future[None]":
        done: Future[None] = Future()

        def run() -> None:
            act()
            done.set_result(None)

        self._inbox.put(run)
        return done

    def _use(self, folder: Path, model: PreTrainedModel) -> None:
        self._folder = folder
        self.stop_token_ids = stop_tokens(folder, model.config)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._model = model
        self._weights += 1
        self._cache.clear()

    def _new_sequence(self) -> Sequence:
        config = self._model.config
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return Sequence(config.num_hidden_layers, kv_heads, head_dim, self._device)

    def _pause(self, abort: bool) -> None:
        self._paused = True
        if abort:
            for generation in list(self._running):
                self._end(generation, "abort")
            while self._waiting:
                generation = self._waiting.popleft()
                generation.future.set_result(generation.result("abort"))

    def _loop(self) -> None:
        try:
            while True:
                self._read_inbox(wait=not self._running and (self._paused or not self._waiting))
                for generation in [running for running in self._running if running.abandoned]:
                    self._end(generation, "abort")
                self._admit()
                if self._running:
                    self._step()
        except BaseException:  # callers must see the server gone, not wait for ever on a thread that is no more
            traceback.print_exc()
            os._exit(1)

    def _read_inbox(self, wait: bool) -> None:
        if wait:
            self._inbox.get()()
        while True:
            try:
                act = self._inbox.get_nowait()
            except queue.Empty:
                return
            act()

    def _admit(self) -> None:
        while self._waiting and not self._paused and len(self._running) < self._max_running:
            if any(len(running.owed()) > 1 for running in self._running):
                return
            generation = self._waiting.popleft()
            if generation.abandoned:
                generation.future.set_result(generation.result("abort"))
                continue
            live = [running.sequence for running in self._running if running.weights == self._weights]
            generation.sequence = self._cache.open(generation.prompt, live)
            generation.cached_tokens = generation.sequence.length
            generation.weights = self._weights
            self._running.append(generation)

    @torch.inference_mode()
    def _step(self) -> None:
        rows = [(generation, generation.owed()[:PREFILL_CHUNK]) for generation in self._running]
        spans = []
        start = 0
        for generation, tokens in rows:
            sequence = generation.sequence
            sequence.reserve(sequence.length + len(tokens))
            sequence.ids[sequence.length : sequence.length + len(tokens)] = tokens
            spans.append(Span.at(start, len(tokens), sequence))
            start += len(tokens)
        positions = [np.arange(s.sequence.length, s.sequence.length + s.count) for s in spans]
        logits = self._model(
            input_ids=torch.from_numpy(np.concatenate([tokens for _, tokens in rows]).astype(np.int64))[None].to(
                self._device
            ),
            position_ids=torch.from_numpy(np.concatenate(positions))[None].to(self._device),
            use_cache=False,
            spans=spans,
            logits_to_keep=torch.tensor([span.start + span.count - 1 for span in spans], device=self._device),
        ).logits[0]
        for span in spans:
            span.sequence.length += span.count
        self._sample(logits)

    def _sample(self, logits: torch.Tensor) -> None:
        ready = [i for i, g in enumerate(self._running) if g.sequence.length >= len(g.prompt)]
        if not ready:
            return
        generations = [self._running[i] for i in ready]
        tokens, logprobs = sample(
            logits[ready],
            [g.params.temperature for g in generations],
            [g.params.top_p for g in generations],
            [g.rng.random() for g in generations],
        )
        for generation, token, logprob in zip(generations, tokens, logprobs, strict=True):
            generation.token_ids.append(token)
            generation.logprobs.append(logprob)
            generation.versions.append(self.version)
            finish = generation.finish()
            if finish:
                self._end(generation, finish)

    def _end(self, generation: Generation, finish: str) -> None:
        self._running.remove(generation)
        if generation.weights == self._weights:  # keys of older weights must not serve newer ones
            self._cache.keep(generation.sequence)
        generation.future.set_result(generation.result(finish))
