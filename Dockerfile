# Images of efa-gda. docs/containers.md describes them.
#
#   docker build --target probe -t gda-probe .                  diagnoses a container
#   docker build --target transport -t efa-gda-transport .      builds transports: headers, libraries, kernels
#
# RUST is the image that compiles: it has Rust 1.88 or newer, a C++17 compiler and binutils. If target/image holds files
# that scripts/lib/image_files.sh made before, nothing is compiled, and RUST can be any image with bash. BASE is the image
# that the result extends; PACKAGES and TOOLS are Debian packages that are added to it, none if empty. The default BASE
# serves --soft only, because its libfabric and rdma-core expose no queues of an EFA adapter.
ARG RUST=rust:1-bookworm
ARG BASE=debian:bookworm-slim

FROM ${RUST} AS build
LABEL efa-gda.stage=build
COPY . /source
RUN /source/scripts/lib/image_files.sh /out

FROM ${BASE} AS probe
ARG PACKAGES="libfabric1 ibverbs-providers"
RUN if [ -n "$PACKAGES" ]; then apt-get update && apt-get install -y --no-install-recommends $PACKAGES && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt; fi
COPY --from=build /out/probe /
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/gda-probe"]
CMD ["check"]

FROM probe AS transport
ARG TOOLS="g++ libc6-dev pkgconf"
RUN if [ -n "$TOOLS" ]; then apt-get update && apt-get install -y --no-install-recommends $TOOLS && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt; fi
COPY --from=build /out/transport /
RUN ldconfig
ENTRYPOINT []
CMD ["/bin/bash"]
