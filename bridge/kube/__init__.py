"""The Kubernetes API: transport, cache, work queue, lease, events. Objects are plain dictionaries."""
