"""The configurations of other plugins as ``site.toml``."""
