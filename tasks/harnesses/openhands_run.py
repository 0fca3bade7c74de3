"""The program around the OpenHands SDK. It runs inside the sandbox, on the Python of OpenHands' own environment.

    LLM_MODEL=... LLM_BASE_URL=... LLM_API_KEY=... python openhands_run.py -- INSTRUCTION

It prints one JSON object at the end: `status` of the conversation, and `error`, with what led to it, where it ended by
one.
"""

import json
import os
import sys

from openhands.sdk import LLM
from openhands.sdk import Conversation
from openhands.tools.preset.default import get_default_agent

agent = get_default_agent(LLM.load_from_env(), cli_mode=True)
conversation = Conversation(agent=agent, workspace=os.getcwd(), visualizer=None)
conversation.send_message(sys.argv[-1])
errors: list[str] = []
try:
    conversation.run()
except Exception as caught:
    cause: BaseException | None = caught
    while cause is not None:
        errors.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
status = conversation.state.execution_status.value
conversation.close()
print(json.dumps({"type": "result", "status": status, "error": "; after ".join(errors)}))
sys.exit(1 if errors else 0)
