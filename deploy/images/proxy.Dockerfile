# The recording proxy alone: no torch, nothing of ours but proxy_addons.
#   docker build -f deploy/images/proxy.Dockerfile -t openforge/proxy:0.1.0 .
FROM python:3.12-slim-bookworm
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 DO_NOT_TRACK=1
WORKDIR /openforge
COPY constraints.txt ./
# PROXY_PACKAGES of the Makefile; tests/deploy/test_images.py compares.
RUN pip install --no-cache-dir -c constraints.txt \
    aiohttp cachetools certifi fsspec httptools jinja2 mitmproxy numpy orjson pillow pyarrow renderers transformers \
    uvloop zstandard
COPY proxy_addons proxy_addons
USER 1000:1000
ENTRYPOINT ["python", "-m", "proxy_addons"]
