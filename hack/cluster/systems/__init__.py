"""The real systems of a cluster, and what is installed for them: a module for each."""
