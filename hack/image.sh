#!/usr/bin/env bash
# Builds the image of podbridge from the Dockerfile, without a container engine's daemon: ./hack/image.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster.systems.image "$@"
