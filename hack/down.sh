#!/usr/bin/env bash
# Stops what up.sh started: ./hack/down.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster down "$@"
