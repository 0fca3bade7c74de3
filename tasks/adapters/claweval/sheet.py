"""A ClawEval task file, and where the files that it names are."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic import Field


class Prompt(BaseModel):
    """What the agent is asked."""

    text: str = Field(min_length=1)
    language: str = "zh"
    attachments: list[str] = Field(default_factory=list)


class Tool(BaseModel):
    """A tool as the agent is told of it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class Endpoint(BaseModel):
    """Where a tool is served; the agent is not told."""

    tool_name: str
    url: str
    method: str = "POST"


class Service(BaseModel):
    """A mock service. `port` only tells which endpoints are its own: ours listens on a socket."""

    name: str
    command: str
    port: int
    health_check: str
    health_check_method: str = "POST"
    ready_timeout: float = 10.0
    reset_endpoint: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


class Environment(BaseModel):
    """Limits."""

    timeout_seconds: float = 300
    max_turns: int = 20
    fixtures: list[str] = Field(default_factory=list)
    env_snapshot_timeout: float = 10


class UserAgent(BaseModel):
    """A user that a model plays."""

    enabled: bool = False


class Sheet(BaseModel):
    """A task.yaml. Fields that only its grader reads are left out: that reads the file itself."""

    folder: str
    task_id: str
    category: str = "other"
    prompt: Prompt
    tags: list[str] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)
    tool_endpoints: list[Endpoint] = Field(default_factory=list)
    services: list[Service] = Field(default_factory=list)
    environment: Environment = Environment()
    user_agent: UserAgent = UserAgent()
    sandbox_files: list[str] = Field(default_factory=list)
    sandbox_grader_files: list[str] = Field(default_factory=list)
    local_grader_files: list[str] = Field(default_factory=list)
    env_snapshot_files: list[str] = Field(default_factory=list)
    env_snapshot_commands: list[str] = Field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The workspace's files, by path from the task's folder or from the checkout."""
        return self.sandbox_files or self.environment.fixtures

    def served(self) -> list[Tool]:
        """The tools that a service has; others (Bash, Read) are every harness's own."""
        paths = {endpoint.tool_name for endpoint in self.tool_endpoints}
        return [tool for tool in self.tools if tool.name in paths]


def find(sheet: Sheet, checkout: Path, name: str) -> Path | None:
    """A file that a task names: in its folder, or for another task's fixtures below the checkout."""
    for place in (checkout / "tasks" / sheet.folder / name, checkout / name):
        if place.is_file() and place.resolve().is_relative_to(checkout.resolve()):
            return place
    return None
