"""The configuration of a site: ``site.toml``."""
