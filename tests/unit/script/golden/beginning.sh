#!/bin/bash
umask 077
case ${BASH_SOURCE[0]} in */*) cd -- "${BASH_SOURCE[0]%/*}" || exit 1 ;; esac
JOB=$PWD
if [[ ' inside leftovers session console connector reach ' != *" ${1-} "* ]]; then
    made=$([[ -e started || -L started ]] || exec mkdir -pv started state/.new logs run termination volumes scratch control)
    MADE=$?
    [[ ${made%%$'\n'*} == *[!-/a-z0-9]started* ]] || { [[ -d started ]]; exit; }
    made=${SLURM_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID-}}}}
    printf '%s\n' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$made}" >started/job
fi
LOCALE=${LC_ALL-}
if [[ ' session console connector reach ' == *" ${1-} "* ]]; then exec 3>&1 4>&2 >/dev/null 2>&1; fi
if [[ ${1-} != inside ]]; then
:
module purge
set +Cefu +o pipefail
fi
if [[ ' session console connector reach ' == *" ${1-} "* ]]; then exec >&3 2>&4 3>&- 4>&-; fi
