"""The read-only web page: pools, nodes and pods, from the API server alone."""
