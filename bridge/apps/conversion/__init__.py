"""Converters of other bridges' values and manifests for ``podbridge convert``. Pure: text in, objects and notes out."""
