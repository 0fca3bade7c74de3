# The flow: it orchestrates the rollouts and updates the weights. It serves as policy server too where there is no GPU.
#   docker build -f deploy/images/trainer.Dockerfile -t openforge/trainer:0.1.0 .
# For a machine without a GPU: --build-arg TORCH=torch==2.13.0+cpu, with an index that has that build.
FROM python:3.11-slim-bookworm
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DO_NOT_TRACK=1 USER=openforge
WORKDIR /openforge
# git: a task's workspace may be a repository, whose future is taken out before the agent sees it.
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
ARG TORCH=torch==2.13.0
COPY pyproject.toml constraints.txt ./
# As `make setup`: torch alone and first, so that a build chosen above is kept.
RUN pip install --no-cache-dir -c constraints.txt "$TORCH" \
    && python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        > requirements.txt \
    && pip install --no-cache-dir -c constraints.txt -r requirements.txt
COPY models models
COPY proxy_addons proxy_addons
COPY training training
COPY tasks tasks
COPY flows flows
COPY deploy/harnesses deploy/harnesses
USER 1000:1000
