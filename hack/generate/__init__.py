"""Writes the files that follow from the code, the chart and other sources: ./hack/generate.sh."""
