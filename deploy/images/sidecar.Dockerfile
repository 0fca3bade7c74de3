# What runs beside the agent in every rollout pod: one file, Python's standard library only.
#   docker build -f deploy/images/sidecar.Dockerfile -t openforge/sidecar:0.1.0 .
FROM python:3.12-slim-bookworm
COPY tasks/kube/sidecar.py /openforge/sidecar.py
USER 1000:1000
