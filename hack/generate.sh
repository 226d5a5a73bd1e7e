#!/usr/bin/env bash
# Writes the files that follow from the code, from the chart and from hack/panels: ./hack/generate.sh --help
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack generate "$@"
