"""The kubelet API of the virtual nodes: the requests that an API server sends to a node, mainly for logs."""
