"""Rollouts on Kubernetes: what `tasks.sandboxes.kubernetes` is made of.

A rollout try is one Job with one pod of four containers:

* `payload` (init, harness image) copies the harness to a volume, so that no image per pair of harness and task is
  needed; `fetch` (init, sidecar image) unpacks what the orchestrator gives: workspace, home, the command.
* `agent` (task image) runs the command and nothing of ours but five lines of sh.
* `sidecar` carries 127.0.0.1:8080 to the proxy, captures output, holds the time limits and, when the agent's
  processes are gone, uploads workspace, output and exit record to the orchestrator's collector. The agent can neither
  signal it nor read its key, so an agent cannot forge a result.

Nothing is read from pod logs or through exec. Objects are plain JSON data; `kubernetes.aio` brings configuration,
credentials and the transport.
"""
