# One image a harness. An init container copies /opt to a volume that the agent's container mounts, so each image holds
# the harness at the path where `tasks.harnesses` looks for it inside a sandbox, and a shell with `cp`.
#   docker build -f deploy/images/harnesses.Dockerfile --target claude-code -t openforge/claude-code:0.1.0 .
#   docker build -f deploy/images/harnesses.Dockerfile --target codex -t openforge/codex:0.1.0 .
FROM node:24-bookworm-slim AS install
WORKDIR /harnesses
COPY deploy/harnesses/package.json deploy/harnesses/package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund
# npm's names of the processor, and the Rust world's for Codex.
RUN mkdir /payload \
    && cp -a node_modules/@anthropic-ai/claude-code-linux-$(node -p process.arch) /payload/claude-code \
    && cp -a node_modules/@openai/codex-linux-$(node -p process.arch)/vendor/*-unknown-linux-musl /payload/codex

FROM busybox:1.37.0 AS claude-code
COPY --from=install --chown=1000:1000 /payload/claude-code /opt/claude-code
USER 1000:1000

FROM busybox:1.37.0 AS codex
COPY --from=install --chown=1000:1000 /payload/codex /opt/codex
USER 1000:1000
