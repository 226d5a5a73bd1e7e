# The image of podbridge: all parts, one program. Build it with any container engine, or with ./hack/image.sh.
#
# The last stage has no base image: it contains the Debian packages that Python needs, the packages of requirements.lock
# and podbridge. There is no shell and no package manager in it.
#
# The build stages run on the architecture of the building machine, also for an image of another one: amd64 or arm64.
#
# To use a newer base for the build stages: ./hack/image.sh --pin
ARG BASE=docker.io/library/debian:trixie-slim@sha256:a29215f6a35e51e22adffa17f89e9d2ef06214e64a2bad10d765c46aea49f11f

FROM --platform=$BUILDPLATFORM ${BASE} AS tools
ENV DEBIAN_FRONTEND=noninteractive
# the build back ends come from Debian too: pip downloads nothing that is not in the lock file
RUN apt-get update && apt-get install --yes --no-install-recommends \
      binutils-aarch64-linux-gnu binutils-x86-64-linux-gnu ca-certificates python3 python3-hatchling python3-pip \
      python3-setuptools

# --- Python ---------------------------------------------------------------------------------------------------------
FROM tools AS runtime
ARG TARGETARCH
WORKDIR /packages
RUN apt="apt-get --option=APT::Architecture=$TARGETARCH --option=APT::Architectures=$TARGETARCH" \
 && $apt update && $apt download \
      base-files libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.13-minimal libpython3.13-stdlib \
      libssl3t64 libuuid1 libzstd1 media-types netbase python3-minimal python3.13-minimal zlib1g
COPY hack/image/runtime.sh /build/runtime.sh
RUN sh /build/runtime.sh /packages /image

# --- the packages of the lock file ----------------------------------------------------------------------------------
FROM tools AS libraries
ARG TARGETARCH
# of an index of packages other than PyPI
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY requirements.lock hack/image/libraries.sh /build/
RUN sh /build/libraries.sh "$TARGETARCH" /build/requirements.lock /image

# --- podbridge ------------------------------------------------------------------------------------------------------
FROM tools AS program
WORKDIR /build/source
COPY pyproject.toml README.md LICENSE ./
COPY bridge bridge
COPY admission admission
COPY scheduler scheduler
COPY controllers controllers
RUN python3 -m pip install --root-user-action=ignore --break-system-packages --no-deps --no-build-isolation \
      --no-index --no-compile --root=/image . \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /image /image/usr/local/lib

# --- the bill of materials ------------------------------------------------------------------------------------------
FROM tools AS sbom
COPY hack/image/sbom.py /build/sbom.py
COPY --from=runtime /image /image
COPY --from=libraries /image /image
COPY --from=program /image /image
RUN mkdir -p /sbom/usr/share/podbridge && python3 /build/sbom.py /image >/sbom/usr/share/podbridge/sbom.cdx.json

# --- the image ------------------------------------------------------------------------------------------------------
FROM scratch
COPY --from=runtime /image /
COPY --from=libraries /image /
COPY --from=program /image /
COPY --from=sbom /sbom /
# with an arena for each thread, glibc keeps most of the memory that large requests needed (the limit of a pod: 512 MiB)
ENV PATH=/usr/local/bin:/usr/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LANG=C.UTF-8 MALLOC_ARENA_MAX=2 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# a number: with a name, runAsNonRoot of a pod could not be checked
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/usr/local/bin/podbridge"]
CMD ["--help"]
