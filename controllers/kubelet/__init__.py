"""The kubelet API of the virtual nodes: what the API server asks a node for, logs above all."""
