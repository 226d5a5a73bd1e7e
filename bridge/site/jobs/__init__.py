"""The jobs of a site: their directories, records, actions and status."""
