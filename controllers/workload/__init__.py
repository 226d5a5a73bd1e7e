"""Either side's end ends the other: pod over, job released; job over, pod ended with the reason on it."""
