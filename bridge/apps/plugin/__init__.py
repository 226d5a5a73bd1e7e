"""interLink's REST API in front of pools: the plugin of an interLink API server or of a virtual kubelet."""
