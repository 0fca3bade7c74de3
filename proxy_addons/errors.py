"""Failure classes, one flat family used in every room (docs/architecture.md, "Failure classes").

The class decides what happens next, so raise the one that tells whose fault it was:

* `InfrastructureError`: ours. The rollout is run again as a new try; it never becomes a reward.
* `HarnessError`: the harness crashed, hung or never called the model. Counted; no silent 0.
* `PolicyFailure`: the agent did the wrong thing or ran out of its own time or tokens. A real reward.
* `VerifierError`: no verdict. No reward, and the rollout stays out of the baseline.
* `ConfigError`: the user's input is wrong. Nothing starts; the message names the field and the remedy.
"""


class OpenForgeError(Exception):
    """Base of the family; `error_class` is the name stored in records."""

    @property
    def error_class(self) -> str:
        return type(self).__name__


class InfrastructureError(OpenForgeError):
    pass


class HarnessError(OpenForgeError):
    pass


class PolicyFailure(OpenForgeError):
    pass


class VerifierError(OpenForgeError):
    pass


class ConfigError(OpenForgeError):
    pass
