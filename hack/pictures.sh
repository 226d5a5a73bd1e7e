#!/usr/bin/env bash
# Writes the pictures of the web page in docs/admins/pictures, from a real browser on a cluster of its own.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
hack cluster.demo.pictures "$@"
