"""Prefect logs whatever ends a flow or a task with its traceback; of a user's mistake it keeps the line alone."""

import logging

from proxy_addons.errors import ConfigError


def install() -> None:
    """Drop the traceback of every ConfigError that Prefect logs in this process; calling it again changes nothing."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_traceback)


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], ConfigError):
        record.exc_info = None
    return True
