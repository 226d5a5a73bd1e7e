"""The admission webhook: patches and validates pods, and validates namespaces."""
