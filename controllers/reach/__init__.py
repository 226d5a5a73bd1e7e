"""Pods at sites reach Services of the cluster: the streams of their connections, and what these may lead to."""
