"""The model that the KL term refers to, where the policy under its adapter is not that model itself."""

from pathlib import Path

from transformers import AutoConfig

from proxy_addons.errors import ConfigError
from training.job import TrainSettings


def reference_folder(base_model: Path, settings: TrainSettings) -> Path:
    """Its Hugging Face folder. Raises ConfigError if that cannot be the reference of a policy like `base_model`."""
    folder = Path(settings.reference_model or base_model)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"reference_model: {folder} is no Hugging Face folder; it has no config.json")
    ours, its = (AutoConfig.from_pretrained(each) for each in (base_model, folder))
    tokens, its_tokens = (each.get_text_config().vocab_size for each in (ours, its))
    if tokens != its_tokens:
        raise ConfigError(
            f"reference_model: {folder} has {its_tokens} tokens and the policy {tokens}; their ids must agree"
        )
    if hasattr(ours, "vision_config") != hasattr(its, "vision_config"):
        raise ConfigError(f"reference_model: {folder} and the policy must both see images, or neither")
    return folder
