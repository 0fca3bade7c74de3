"""The program around the OpenHands SDK. It runs inside the sandbox, on the Python of OpenHands' own environment.

    LLM_MODEL=... LLM_BASE_URL=... LLM_API_KEY=... python openhands_run.py -- INSTRUCTION

It prints one JSON object at the end: `status` of the conversation, and `error` where it ended by one.
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
error = None
try:
    conversation.run()
except Exception as caught:
    error = f"{type(caught).__name__}: {caught}"
status = conversation.state.execution_status.value
conversation.close()
print(json.dumps({"type": "result", "status": status, "error": error}))
sys.exit(0 if error is None else 1)
