"""Sampling one token per row, with the logprob under exactly the distribution that was sampled from."""

import torch


def sample(
    logits: torch.Tensor, temperature: list[float], top_p: list[float], uniform: list[float]
) -> tuple[list[int], list[float]]:
    """One token and its logprob for each row of `logits` [rows, vocab].

    The distribution is the one after temperature and then top-p, renormalised ("processed", as in vLLM). Temperature 0
    takes the likeliest token and reports its logprob at temperature 1 with no top-p, as vLLM does. `uniform` holds one
    number in [0, 1) per row: the row's only source of chance.
    """
    device = logits.device
    greedy = torch.tensor([t == 0 for t in temperature], device=device)
    scale = torch.tensor([t or 1.0 for t in temperature], device=device)
    logits = logits.float() / scale[:, None]
    if any(p < 1 and t > 0 for p, t in zip(top_p, temperature, strict=True)):
        keep = torch.tensor([p if t else 1.0 for p, t in zip(top_p, temperature, strict=True)], device=device)
        logits = _keep_top_p(logits, keep)
    logprobs = logits.log_softmax(-1)
    # Inverse of the cumulative distribution. The first entry above the target has probability above 0, so a token
    # that top-p removed cannot be drawn.
    cumulative = logprobs.exp().double().cumsum(-1)
    target = torch.tensor(uniform, dtype=torch.float64, device=device) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    tokens = torch.where(greedy, logits.argmax(-1), drawn)
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


def _keep_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Remove all but the smallest set of likeliest tokens whose probability reaches `top_p` (at least one)."""
    ascending, order = logits.sort(-1)
    removed = ascending.softmax(-1).cumsum(-1) <= 1 - top_p[:, None]
    removed[:, -1] = False
    return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)
