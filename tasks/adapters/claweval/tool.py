"""A task's tool as a command: python3 tool.py NAME 'JSON'. Runs in the sandbox on its own python3, nothing else."""

import json
import sys
import urllib.error
import urllib.request

URL = "http://127.0.0.1:8081/tools/"


def main(arguments: list[str]) -> int:
    """Call the tool; its answer goes to standard output."""
    if not 1 <= len(arguments) <= 2:
        print("usage: tool.py NAME 'JSON'", file=sys.stderr)
        return 2
    body = arguments[1] if len(arguments) == 2 else "{}"
    try:
        if not isinstance(json.loads(body), dict):
            raise ValueError("it must be an object")
    except ValueError as error:
        print(f"the arguments are not JSON: {error}", file=sys.stderr)
        return 2
    request = urllib.request.Request(
        URL + arguments[0], data=body.encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=60) as answer:
            print(answer.read().decode())
            return 0
    except urllib.error.HTTPError as error:
        print(error.read().decode(errors="replace"))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
