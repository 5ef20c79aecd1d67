# The image of compute-manager: the locked dependencies and this package, run as nobody on a read-only root.
# Both stages use the same BASE, a Debian-like system with Python 3.11 or newer and its venv module.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
RUN python3 -m venv --without-pip /opt/compute && python3 -m venv /opt/tools
COPY requirements.lock requirements-dev.lock ./
# Nothing but what the locks pin with hashes; the build backend stays in this stage.
RUN /opt/tools/bin/pip --python /opt/compute/bin/python install --require-hashes --only-binary :all: -r requirements.lock \
 && /opt/tools/bin/pip install --require-hashes --only-binary :all: -r requirements-dev.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/tools/bin/pip --python /opt/compute/bin/python install --no-deps --no-index /wheels/*.whl \
 && /opt/compute/bin/python -m compileall -q /opt/compute/lib

FROM ${BASE}
COPY --from=build /opt/compute /opt/compute
ENV PATH=/opt/compute/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["/opt/compute/bin/compute-manager"]
